#!/usr/bin/env bash
# bundle.sh ROOT BUILD HOST: a bundle of the CUDA build's programs and of one test, unpacked somewhere else. Without a GPU
# its programs plan and refuse to compute, and its tests are skipped by name. Another has CUDA's libraries and cuDNN's, or
# stand-ins for these, and the programs of the host build HOST.
set -euo pipefail
root=$1 build=$2 host=$3
for program in "$build/llmtrain" "$build/llmtool" "$build/tests/test_device"; do
  [[ -x $program ]] || exec "$(dirname "$0")/left_out.sh" cuda "cuda.bundle ($program was not built: the cuda preset is)"
done
export CUDA_VISIBLE_DEVICES='' # also on a machine with a GPU
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
  share/llmtrain/inputs/medium.ini tests/cuda/gpu_runs.sh tests/cuda/sanitizer.sh tests/cuda/small.ini VERSIONS; do
  [[ -e $bundle/$file ]] || fail "$file is missing"
done
[[ ! -e $bundle/host ]] || fail "the host's programs were not asked for"
[[ ! -e $bundle/lib/libcuda.so.1 ]] || fail "the driver's library belongs to the machine"
compgen -G "$bundle/share/llmtrain/modules/tcl/llmtrain/[0-9]*-cuda" >/dev/null || fail "the module file has no device in its name"

# Every library that a program needs is in the bundle, or listed as the machine's.
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
rm -r "$work/elsewhere" "$work/b.tar.xz"

# The complete bundle: cuDNN is loaded by name, so that only the list includes it.
refused() { # refused MESSAGE OPTION...: expects exit code 66
  local message=$1 code=0
  shift
  "$root/cmake/bundle.sh" "$build" "$work/refused.tar" --only none "$@" >"$work/refused.txt" 2>&1 || code=$?
  [[ $code == 66 && ! -e $work/refused.tar ]] || { cat "$work/refused.txt" && fail "exit code $code, not 66: $*"; }
  grep -q "$message" "$work/refused.txt" || { cat "$work/refused.txt" && fail "nothing says: $message"; }
}
refused 'was not built with the preset host' --host "$build"
mkdir "$work/no_benchmarks"
printf 'LLMTRAIN_DEVICE:STRING=cuda\nLLMTRAIN_BENCHMARKS:BOOL=OFF\n' >"$work/no_benchmarks/CMakeCache.txt"
build=$work/no_benchmarks refused 'has no gpu_kernels_bench' --only '*'
options=(--with-cuda --host "$host" --only gpu_kernels_bench)
cudnn=$("$build/llmtrain" --version | grep -o 'cuDNN [0-9.]*') || true
engines=()
if grep -q '^FIND_PACKAGE_MESSAGE_DETAILS_CUDNN:' "$build/CMakeCache.txt"; then
  engines=(libcudnn{,_graph,_heuristic,_engines_precompiled,_engines_runtime_compiled}.so.9)
  mkdir -p "$work/stand_ins/lib"
  for name in "${engines[@]}"; do echo 'int stands_in;' | cc -shared -o "$work/stand_ins/lib/$name" -x c -; done
  [[ -n $cudnn ]] || export CUDNN_PATH=$work/stand_ins
  mkdir -p "$work/in_part/lib"
  cp "$work/stand_ins/lib/libcudnn.so.9" "$work/in_part/lib"
  CUDNN_PATH=$work/in_part refused 'libcudnn_graph.so.9 is not found' --with-cuda
fi
"$root/cmake/bundle.sh" "$build" "$work/all.tar" "${options[@]}" | tee "$work/made.txt"
grep -q "^$work/all.tar: [0-9]* MiB, [0-9]* MiB unpacked" "$work/made.txt" || fail "no size"
grep -qx "libraries of the machine with the GPU: the driver's, none" "$work/made.txt" || fail "something is left out"
mkdir "$work/elsewhere"
tar -xf "$work/all.tar" -C "$work/elsewhere"
rm "$work/all.tar"
for file in host/bin/llmtrain host/bin/llmtool gpu_tests/gpu_kernels_bench lib/libcublasLt.so.* lib/libnccl.so.* lib/libnvrtc.so.* lib/libnvrtc-builtins.so.* \
  "${engines[@]/#/lib/}"; do
  compgen -G "$bundle/$file" >/dev/null || fail "$file is missing"
done
loader=("$bundle"/lib/ld-linux*.so.*)
run() { "${loader[0]}" --library-path "$bundle/lib" "$@"; }
run "$bundle/host/bin/llmtrain" --version | grep -q '(host)' || fail "the host's program"
run "$bundle/host/bin/llmtool" --help >/dev/null
code=0
run "$bundle/gpu_tests/gpu_kernels_bench" small >"$work/bench.txt" 2>&1 || code=$?
[[ $code == 69 ]] || { cat "$work/bench.txt" && fail "the benchmark without a GPU: exit code $code"; }
LD_DEBUG=files run "$bundle/bin/llmtrain" --version >"$work/version.txt" 2>"$work/opened.txt"
grep -q '(cuda)' "$work/version.txt" || fail "the GPU program"
if [[ -n $cudnn ]]; then
  grep -q "$cudnn" "$work/version.txt" || { cat "$work/version.txt" && fail "not $cudnn"; }
  grep -q "calling init: $bundle/lib/libcudnn_graph.so.9" "$work/opened.txt" || fail "another cuDNN than the bundle's"
fi
