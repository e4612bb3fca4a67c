#!/usr/bin/env bash
# bundle.sh ROOT BUILD: a bundle of the CUDA build's programs and of one test, unpacked somewhere else. Without a GPU its
# programs plan and refuse to compute, and its tests are skipped by name.
set -euo pipefail
root=$1 build=$2
for program in "$build/llmtrain" "$build/llmtool" "$build/tests/test_device"; do
  [[ -x $program ]] || { echo "skipped: cuda.bundle ($program was not built: the cuda preset is)" && exit 77; }
done
export CUDA_VISIBLE_DEVICES='' # also where there is one
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bundle.sh: $*" && exit 1; }

code=0
"$root/cmake/bundle.sh" "$build" "$work/small.tar.xz" --only test_device --quick --limit 1 2>"$work/refused.txt" >"$work/made.txt" || code=$?
[[ $code == 73 && ! -e $work/small.tar.xz ]] || { cat "$work/made.txt" "$work/refused.txt" && fail "a bundle over its limit: $code"; }
"$root/cmake/bundle.sh" "$build" "$work/b.tar.xz" --only test_device --quick
mkdir "$work/elsewhere"
tar -xJf "$work/b.tar.xz" -C "$work/elsewhere"
bundle=$work/elsewhere/llmtrain-gpu
for file in bin/llmtrain bin/llmtool gpu_tests/test_device tests/reference/models benchmarks/gpu_kernels.py lib/libc.so.6 \
  share/llmtrain/inputs/medium.ini VERSIONS; do
  [[ -e $bundle/$file ]] || fail "$file is missing"
done
[[ ! -e $bundle/lib/libcuda.so.1 ]] || fail "the driver's library belongs to the machine"
compgen -G "$bundle/share/llmtrain/modules/tcl/llmtrain/[0-9]*-cuda" >/dev/null || fail "the module file has no device in its name"

# Every library that a program names is in the bundle, or said to be the machine's.
for program in bin/llmtrain bin/llmtool gpu_tests/test_device; do
  direct=$(readelf -d "$bundle/$program" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p')
  for name in $direct; do
    [[ -e $bundle/lib/$name ]] || grep -qxF "$name" "$bundle/lib/from_cuda.txt" || fail "$program needs $name"
  done
done

code=0
"$bundle/run_gpu_tests.sh" --results "$work/results" >"$work/out.txt" 2>&1 || code=$?
[[ $code == 69 ]] || { cat "$work/out.txt" && fail "without a GPU: exit code $code"; }
grep -q '^skip     test_device: no GPU' "$work/out.txt" || { cat "$work/out.txt" && fail "nothing says that test_device is skipped"; }
grep -q 'passed 0, failed 0, skipped 1' "$work/out.txt" || { cat "$work/out.txt" && fail "no summary"; }
