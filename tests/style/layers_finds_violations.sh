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
plant() { # plant FILE INCLUDE MESSAGE
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
# A circle of three modules, which headers and sources close together; an include that leads nowhere back is none.
printf '#include "text/b.hpp"\n' >"$tree/src/text/a.hpp"
printf '#include "text/a.hpp"\n#include "text/b.hpp"\n' >"$tree/src/text/a.cpp"
printf '#include "text/c.hpp"\n' >"$tree/src/text/b.cpp"
: >"$tree/src/text/b.hpp"
: >"$tree/src/text/c.hpp"
bash "$check" "$tree" >/dev/null || { echo "modules without a circle were refused" && exit 1; }
plant src/text/c.hpp '#include "text/a.hpp"' 'a circle of modules: '
plant src/text/c.cpp '#include "text/b.hpp"' 'a circle of modules: '
# A folder of 40 files passes; 41 do not, unless it is a folder of operations or commands.
mkdir -p "$tree/src/tool"
for i in {1..41}; do : >"$tree/src/tool/$i.cpp"; done
for i in {1..39}; do : >"$tree/src/device/$i.cpp"; done
bash "$check" "$tree" >/dev/null || { echo "a folder of 40 files was refused" && exit 1; }
: >"$tree/src/device/40.cpp"
if output=$(bash "$check" "$tree"); then echo "a folder of 41 files passed" && exit 1; fi
[[ $output == "src/device: 41 files"* ]] || { echo "expected a count of files, got: $output" && exit 1; }
found=$((found + 1))
echo "$found planted violations found"
