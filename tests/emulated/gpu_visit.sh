#!/usr/bin/env bash
# gpu_visit.sh whole|control ROOT BUILD [TEST...]: benchmarks/gpu_visit.sh with the programs of the emulated build in the
# bundle's place. whole: all stages pass or are passed over. control: a product drops a tail of its inner dimension, and
# the visit ends after the probe.
set -euo pipefail
what=$1 root=$2 build=$3 seconds=5000
shift 3
export LLMTRAIN_EMULATOR_CAPABILITY=90
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "gpu_visit.sh: $*" && exit 1; }

mkdir -p "$work/bundle/bin" "$work/bundle/gpu_tests"
ln -s "$build"/{llmtrain,llmtool} "$work/bundle/bin"
ln -s "$build"/benchmarks/{gpu_probe,gpu_kernels_bench} "$work/bundle/gpu_tests"
for name in "$@"; do ln -s "$build/tests/$name" "$work/bundle/gpu_tests"; done
visit() { "$root/benchmarks/gpu_visit.sh" "$work/bundle" "$work/$1" "$seconds" --small; }

if [[ $what == whole ]]; then
  visit out || { tar -xJOf "$work/out/logs.tar.xz" | tail -n 200 && fail "the visit failed"; }
  [[ $(find "$work/out" -type f | wc -l) -le 3 ]] || fail "more than three files came back"
  for name in start probe runs training kernels; do
    grep -q "^$name: passed " "$work/out/summary.txt" || fail "no stage $name"
  done
  for expected in '"item": "graph", .*"ok": true' '"run": "tiny_qlora", .*"estimated_bytes": [1-9]' '"tflops": [0-9.]*' \
    '"what": "adamw"'; do
    grep -q "$expected" "$work/out/figures.jsonl" || fail "no figure has $expected"
  done
  tar -tJf "$work/out/logs.tar.xz" | grep -q '^logs/ranks2.log$' || fail "the logs have no ranks2.log"
  exit 0
fi

code=0
LLMTRAIN_EMULATOR_DROPS_TAIL=1 visit control >"$work/control.txt" 2>&1 || code=$?
[[ $code == 1 ]] || { cat "$work/control.txt" && fail "a wrong product: exit code $code"; }
grep -q '^start: passed ' "$work/control/summary.txt" || fail "the program does not start"
grep -q '^probe: FAILED .* WRONG: small dx 128 x 192 x 64: .* with 128 instead of 192' "$work/control/summary.txt" || fail "the wrong product is not named"
! grep -q '^tests:' "$work/control/summary.txt" || fail "the visit goes on after a wrong number"
