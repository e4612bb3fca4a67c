#!/usr/bin/env bash
# benchmarks.sh ROOT: benchmarks/run.sh reports everything that is missing before it measures anything; if nothing is
# missing it runs every compiled benchmark. All programs are stubs that record their start.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset TEXT LLMTRAIN_DATA SCRATCH ROUNDS RANKS PYTHON MPIRUN PRELOAD TCMALLOC

fail() {
  printf 'benchmarks.sh: %s\n' "$*"
  exit 1
}

mapfile -t compiled < <(sed -n 's/^ *llmtrain_benchmark(\([a-z_]*\) .*/\1/p' "$root/benchmarks/CMakeLists.txt" | grep -v '^gpu_')
((${#compiled[@]} > 5)) || fail "no benchmarks in benchmarks/CMakeLists.txt"

# stub NAME: records its name and arguments, except for checks of its presence.
stub() {
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<EOF
#!/usr/bin/env bash
if [[ \${1:-} == --version ]]; then exit 0; fi
echo "${1##*/} \$*" >>"$work/started"
echo "profile stub"
EOF
  chmod +x "$1"
}
fresh() {
  rm -rf bin data started
  mkdir bin bin/scratch
  for name in llmtrain llmtool; do stub "bin/$name"; done
  for name in "${compiled[@]}"; do stub "bin/benchmarks/$name"; done
  cat >bin/python <<EOF
#!/usr/bin/env bash
if [[ \$1 == -c && \$2 == "import \${ABSENT:-}" ]]; then exit 1; fi
if [[ \$1 == -c ]]; then exit 0; fi
echo "python \$*" >>"$work/started"
echo "a row"
EOF
  cat >bin/mpirun <<'EOF'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do
  case $1 in --bind-to | -n) shift 2 ;; *) shift ;; esac
done
exec "$@"
EOF
  mkdir bin/tools
  cat >bin/tools/ldconfig <<EOF
#!/usr/bin/env bash
[[ -n \${NO_TCMALLOC:-} ]] || echo "libtcmalloc_minimal.so.4 (libc6,x86-64) => $work/text.txt"
EOF
  chmod +x bin/python bin/mpirun bin/tools/ldconfig
  mkdir -p data/tokenizer
  echo text >text.txt
  export PYTHON=$work/bin/python MPIRUN=$work/bin/mpirun LLMTRAIN_DATA=$work/data TEXT=$work/text.txt
}

# expect CODE WORD SECTION...: expects that exit code, and WORD in the output; nothing is started if it fails.
expect() {
  local code=$1 word=$2 got=0 output
  shift 2
  rm -f started
  output=$("$root/benchmarks/run.sh" bin/llmtrain "$@" 2>&1 </dev/null) || got=$?
  [[ $got == "$code" && $output == *"$word"* ]] || fail "$* gave $got, expected $code and '$word': $output"
  [[ $code == 0 || ! -e started ]] || fail "$* measured before it failed: $(cat started)"
}

export PATH=$work/bin/tools:$PATH
fresh
expect 0 'a row'
for script in profile_overhead.py tokenizers_encode.py checkpoint_stall.py; do
  grep -q "$script" started || fail "no section runs $script"
done
for name in "${compiled[@]}"; do
  grep -q "$name" started || fail "no section runs $name"
done
expect 0 'a row' pytorch
! grep -q _bench started || fail "a section that was not asked for: $(cat started)"

expect 64 'nonsense: no section of that name' pytorch nonsense
rm bin/llmtrain
expect 66 'bin/llmtrain does not start' optimizer
for name in "${compiled[@]}"; do
  fresh
  rm "bin/benchmarks/$name"
  expect 66 "missing: $work/bin/benchmarks/$name is not there"
done
fresh
rm bin/llmtool
expect 66 'bin/llmtool is not there' products tokenizers
fresh
for name in torch safetensors tokenizers sentencepiece tiktoken; do
  ABSENT=$name expect 66 "bin/python cannot import $name"
done
ABSENT=torch expect 0 'profile stub' products
for section in pytorch first_step characters; do
  NO_TCMALLOC=1 expect 66 "'' cannot be preloaded into PyTorch as its malloc" "$section"
  NO_TCMALLOC=1 TCMALLOC=none expect 0 'a row' "$section"
done
PRELOAD=$work/nowhere.so expect 66 "nowhere.so' cannot be preloaded into PyTorch as its malloc" pytorch
NO_TCMALLOC=1 expect 0 'a row' recompute
MPIRUN=$work/nowhere/mpirun expect 66 'nowhere/mpirun cannot start 2 processes' profile transfers
PYTHON=$work/nowhere/python expect 66 'nowhere/python does not start' optimizer
ROUNDS=many expect 66 "'many' is not a number of rounds" optimizer
SCRATCH=$work/nowhere expect 66 'nowhere is not a writable folder' load
LLMTRAIN_DATA=$work expect 66 'has no folder tokenizer/' tokenizers
TEXT=$work/nowhere.txt expect 66 'nowhere.txt'"' is not a readable file" profile
TEXT='' expect 66 'is not a readable file (TEXT)' characters
TEXT='' expect 0 'characters: left out, TEXT names no file'
! grep -q char_model started || fail "characters without a text"
# Everything that is missing is reported at once.
rm bin/benchmarks/load_bench
output=$(LLMTRAIN_DATA='' "$root/benchmarks/run.sh" bin/llmtrain load tokenizers 2>&1) || true
[[ $(grep -c '^missing: ' <<<"$output") == 2 ]] || fail "not all that is missing: $output"
echo "run.sh says what it misses before it measures"
