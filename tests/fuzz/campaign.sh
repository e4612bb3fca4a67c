#!/usr/bin/env bash
# Runs libFuzzer on every target of tests/fuzz, from the committed corpus, with memory and time capped, under the address and
# undefined behaviour sanitizers. Builds them with the preset host-fuzz (clang).
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/fuzz/campaign.sh [BUILD_FOLDER] [--seconds N] [--target NAME]...

  BUILD_FOLDER  taken for the sake of tests/run.sh, and not used: the preset host-fuzz builds in build/host-fuzz
  --seconds N   time for each target (60)
  --target N    this target only (all)

What fuzzing finds beside the corpus is kept in build/host-fuzz/found/TARGET for the next campaign, inputs that crash, hang, leak
or ask for too much memory in build/host-fuzz/failures/. Add those, made small with `fuzz_TARGET -minimize_crash=1`, to
tests/fuzz/corpus/TARGET: they are replayed by the tests of every build. Exit code 1 when a target failed.
TEXT
}

root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
seconds=60
targets=()
while (($#)); do
  case $1 in
    --seconds) seconds=${2:?} && shift ;;
    --target) targets+=("${2:?}") && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) echo "campaign.sh: unknown option '$1' (--help lists them)" >&2 && exit 64 ;;
    *) ;;
  esac
  shift
done
if ((${#targets[@]} == 0)); then
  for folder in "$root"/tests/fuzz/corpus/*/; do targets+=("$(basename "$folder")"); done
fi

build=$root/build/host-fuzz
if ! command -v clang++ >/dev/null; then
  echo "campaign.sh: left out: libFuzzer (no clang++ here); the tests fuzz.* replay the corpus"
  exit 0
fi
cd "$root"
mkdir -p "$build/failures"
cmake --preset host-fuzz >"$build/configure.log" || { cat "$build/configure.log" >&2 && exit 1; }
cmake --build "$build" --target "${targets[@]/#/fuzz_}" >"$build/build.log" || { tail -50 "$build/build.log" >&2 && exit 1; }

# strict_string_checks and the like as in the tests; allocations that cannot be met fail as they do elsewhere.
export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LSAN_OPTIONS=suppressions=$root/tests/harness/leaks.supp:print_suppressions=0
failed=()
for target in "${targets[@]}"; do
  found=$build/found/$target
  mkdir -p "$found"
  seeds=("tests/fuzz/corpus/$target")
  case $target in tokenizer_json | sentencepiece) seeds+=(tests/reference/tokenizers/synthetic) ;; esac
  log=$build/failures/$target.log
  status=0
  "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=20 -max_len=65536 \
    -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$build/failures/$target-" "$found" "${seeds[@]}" \
    >"$log" 2>&1 || status=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
  slowest=$(sed -n 's/^stat::slowest_unit_time_sec: *//p' "$log")
  if ((status == 0)); then
    echo "fuzz_$target: $runs inputs in $seconds s, slowest ${slowest} s, at most ${peak} MB: nothing found"
  else
    echo "fuzz_$target: FAILED after ${runs:-?} inputs; see $log"
    grep -m3 -E 'ERROR|SUMMARY|runtime error' "$log" || tail -5 "$log"
    failed+=("$target")
  fi
done
exit $((${#failed[@]} > 0))
