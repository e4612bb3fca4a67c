#!/usr/bin/env bash
# Runs the tests and benchmarks of an unpacked bundle (cmake/bundle.sh) on this machine's GPU, and prints a summary.
set -uo pipefail
shopt -s nullglob

usage() {
  cat <<'TEXT'
usage: run_gpu_tests.sh [--only PATTERN] [--ranks "1 2 4"] [--no-sanitizer] [--benchmarks] [--results FOLDER]

  --only PATTERN   tests whose names match (a shell pattern; `test_kernels`, `*mpi*`, `gpu_runs`: the whole runs)
  --ranks LIST     rank counts of the tests of several ranks; with fewer GPUs than ranks they share one
  --no-sanitizer   without compute-sanitizer (memcheck and racecheck on the kernels and a small model)
  --benchmarks     the benchmarks, too: needs a quiet GPU and, for the peers, a python3 with torch (PYTHON) and llm.c's
                   train_gpt2cu (LLMC)
  --results FOLDER logs (results)

Exit code 0: all that ran passed; 1: something failed; 69: no GPU, nothing ran.
TEXT
}

only='*' ranks='1 2 4' sanitizer=true benchmarks=false results=results
value() { # value OPTION VALUE...: checks that the option has a value
  [[ -n ${2:-} ]] || { echo "run_gpu_tests.sh: $1 needs a value (--help lists the options)" >&2 && exit 64; }
}
while (($# > 0)); do
  case $1 in
    --only) value "$@" && only=$2 && shift ;;
    --ranks) value "$@" && ranks=$2 && shift ;;
    --no-sanitizer) sanitizer=false ;;
    --benchmarks) benchmarks=true ;;
    --results) value "$@" && results=$2 && shift ;;
    -h | --help) usage && exit 0 ;;
    *) echo "run_gpu_tests.sh: unknown option '$1' (--help lists them)" >&2 && exit 64 ;;
  esac
  shift
done
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$results" && results=$(readlink -f "$results") || exit 73
cd "$here" || exit 66 # tests find tests/reference from here

# shellcheck source=tests/cuda/bundled.sh
. "$here/tests/cuda/bundled.sh"
find_libraries "$here" "$results/lib"

cat VERSIONS
passed=() failed=() skipped=() remarks=()
note() { # note RESULT NAME
  printf '%-8s %s\n' "$1" "$2"
  case $1 in pass) passed+=("$2") ;; FAIL) failed+=("$2") ;; skip) skipped+=("$2") ;; esac
}
summary() {
  echo
  echo "passed ${#passed[@]}, failed ${#failed[@]}, skipped ${#skipped[@]}; logs in $results"
  ((${#skipped[@]} == 0)) || printf 'skipped: %s\n' "${skipped[@]}"
  ((${#remarks[@]} == 0)) || printf '%s\n' "${remarks[@]}"
  ((${#failed[@]} == 0)) || printf 'FAILED: %s\n' "${failed[@]}"
}
check() { # check NAME COMMAND...: exit codes 77 and 69 mean that the device is missing
  local name=$1 code=0
  shift
  "$@" >"$results/$name.log" 2>&1 || code=$?
  case $code in
    0) note pass "$name" ;;
    77 | 69) note skip "$name: $(sed -nE '/skipped|llmtrain:|finds none/{s/^skipped: //;p;q}' "$results/$name.log")" ;;
    *) note FAIL "$name (exit code $code)" ;;
  esac
}

if ((${#missing[@]} > 0)); then
  echo "not found on this machine: ${missing[*]}" >&2
  if [[ " ${missing[*]} " != *" libcuda.so.1 "* || ${#missing[@]} -gt 1 ]]; then
    echo "CUDA_HOME names the toolkit, PYTHON an interpreter with torch" >&2
  fi
fi
code=0
run bin/llmtrain tests/cuda/small.ini "run.output=$results/runs" "data.cache=$results/cache" run.name=first run.overwrite=true \
  >"$results/first.log" 2>&1 || code=$?
if ((code != 0)); then
  cat "$results/first.log" >&2
  if ((code == 69)) || [[ " ${missing[*]} " == *" lib"* ]]; then
    for program in gpu_tests/{gpu_probe*,*test_*}; do note skip "${program##*/}: no GPU that this machine's libraries can use"; done
    summary
    exit 69
  fi
  note FAIL "a first run (exit code $code)"
else
  note pass "a first run"
fi
run bin/llmtrain --version
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null

for program in gpu_tests/{gpu_probe*,*test_*}; do
  name=${program##*/}
  # shellcheck disable=SC2053 # a pattern
  [[ $name == $only ]] || continue
  if [[ $name == mpi_* ]]; then
    for count in $ranks; do check "$name.np$count" timeout 900 bash -c "$(declare -f run launch); $(declare -p by_loader bundled_launcher)
      launch $count $program"; done
  else
    check "$name" timeout 1800 "${by_loader[@]}" "$program"
  fi
done

# Whole runs, also of several ranks, and with the host's programs if the bundle has them.
mkdir -p "$results/programs" "$results/host"
for name in llmtrain llmtool; do
  wrap "$results/programs/$name" "${by_loader[@]}" "$here/bin/$name"
  [[ ! -e host/bin/$name ]] || wrap "$results/host/$name" "${by_loader[@]}" "$here/host/bin/$name"
done
wrap "$results/programs/gpu_kernels_bench" "${by_loader[@]}" "$here/gpu_tests/gpu_kernels_bench"
wrap "$results/programs/mpirun" "${bundled_launcher[@]}" -n
# shellcheck disable=SC2053 # a pattern
if ((code == 0)) && [[ gpu_runs == $only ]]; then
  code=0
  tests/cuda/gpu_runs.sh "$results/programs" --host "$results/host" --mpirun "$results/programs/mpirun" \
    --work "$results/gpu_runs" >"$results/whole_runs.log" 2>&1 || code=$?
  if ((code == 77)); then
    note skip "$(sed -n 's/^skipped: //p' "$results/whole_runs.log")"
  elif ((code > 1)); then
    note FAIL "gpu_runs (exit code $code)"
  fi
  while read -r result name; do
    case $result in
      passed) note pass "gpu_runs: $name" ;;
      skipped) note skip "gpu_runs: $name" ;;
      FAILED) note FAIL "gpu_runs: $name" ;;
    esac
  done <"$results/whole_runs.log"
fi

if $sanitizer; then
  for tool in memcheck racecheck; do
    check "$tool.model" timeout 1200 tests/cuda/sanitizer.sh "$tool" model "${by_loader[@]}" bin/llmtrain
    check "$tool.kernels" timeout 3000 tests/cuda/sanitizer.sh "$tool" tests "${by_loader[@]}" \
      gpu_tests/test_kernels
  done
  if [[ " ${skipped[*]} " == *'compute-sanitizer is not here'* ]]; then
    remarks+=("no access to memory and no race was checked: compute-sanitizer, of the CUDA toolkit, is not here (PATH, CUDA_HOME)")
  fi
fi

if $benchmarks; then
  [[ -e gpu_tests/gpu_kernels_bench ]] || note FAIL "gpu_kernels_bench: this bundle was made without it (bundle.sh --only)"
  for program in gpu_tests/gpu_*_bench; do check "${program##*/}" timeout 1800 "${by_loader[@]}" "$program"; done
  for script in benchmarks/gpu_*.py; do
    check "$(basename "$script" .py)" timeout 3000 "$python" "$script" "$results/programs/llmtrain" --programs "$results/programs"
  done
  tail -n 40 "$results"/gpu_*.log
fi
summary
((${#failed[@]} == 0))
