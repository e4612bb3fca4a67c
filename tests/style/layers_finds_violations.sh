#!/usr/bin/env bash
# layers_finds_violations.sh ROOT: layers.sh passes a small sound tree and finds each violation planted in it.
set -euo pipefail
check=$(dirname "$(readlink -f "$0")")/layers.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/src/{core,device,parallel,text} "$tree"/kernels/host
grep '^llmtrain_layer(' "$1/CMakeLists.txt" >"$tree/CMakeLists.txt"
printf '#include "core/error.hpp"\n#include <vector>\n' >"$tree/src/device/device.cpp"
printf '#include "kernels/host/product/gemm.hpp"\n#include <Kokkos_Core.hpp>\n' >"$tree/kernels/host/matmul.cpp"
printf '#include "kernels/matmul.hpp"\n#include "device/device.hpp"\n#include <mpi.h>\n' >"$tree/src/parallel/a.cpp"
printf '#include "parallel/a.hpp"\n' >"$tree/src/main.cpp"
bash "$check" "$tree" >/dev/null || { echo "a sound tree was refused" && exit 1; }

found=0
plant() { # file, include line, words of the expected message
  cp "$tree/$1" "$tree/saved" 2>/dev/null || : >"$tree/saved"
  printf '%s\n' "$2" >>"$tree/$1"
  local output
  if output=$(bash "$check" "$tree"); then
    echo "not found: $2 in $1" && exit 1
  fi
  [[ $output == *"$1:"*"$3"* ]] || { printf 'expected "%s", got: %s\n' "$3" "$output" && exit 1; }
  mv "$tree/saved" "$tree/$1"
  found=$((found + 1))
}
plant src/device/device.cpp '#include "parallel/job/runtime.hpp"' 'device must not include'
plant src/core/error.cpp '  #  include "train/trainer.hpp"' 'core must not include'
plant src/text/a.cpp '#include "parallel/job/runtime.hpp"' 'text must not include'
plant src/parallel/a.cpp '#include "kernels/host/product/gemm.hpp"' 'only kernels may include'
plant src/parallel/a.cpp '#include "runtime.hpp"' 'names no layer'
plant src/parallel/a.cpp '#include <Kokkos_Core.hpp>' 'Kokkos and oneDNN'
plant src/device/device.cpp '#include <cuda_runtime.h>' 'CUDA belongs'
plant src/core/error.cpp '#include <nvtx3/nvToolsExt.h>' 'CUDA belongs'
plant src/text/a.cpp '#include <mpi.h>' 'MPI belongs'
echo "$found planted violations found"
