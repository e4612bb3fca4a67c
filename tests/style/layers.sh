#!/usr/bin/env bash
# layers.sh ROOT: no file includes a layer that its own does not depend on. The layers and their dependencies are read
# from CMakeLists.txt. Also: Kokkos, oneDNN, CUDA, NCCL and MPI stay where the architecture puts them.
set -euo pipefail
cd "$1"

# Lines "layer dependency dependency ...", lowest first.
layers=$(sed -n -E 's/^llmtrain_layer\(([a-z]+) *(.*)\)$/\1 \2/p' CMakeLists.txt |
  awk '{ line = $1; for (i = 2; i <= NF; ++i) if (sub(/^llmtrain::/, "", $i)) line = line " " $i; print line }')
[[ $(wc -l <<<"$layers") -ge 2 ]] || { echo "no layers found in CMakeLists.txt" && exit 1; }

mapfile -t files < <(find src kernels -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
((${#files[@]} > 0)) || { echo "no sources found under src and kernels" && exit 1; }

awk -v layers="$layers" '
  BEGIN {
    count = split(layers, lines, "\n")
    for (i = 1; i <= count; ++i) {
      words = split(lines[i], word, " ")
      layer = word[1]
      known[layer] = 1
      allowed[layer, layer] = 1
      for (w = 2; w <= words; ++w)
        for (below in known)
          if ((word[w], below) in allowed) allowed[layer, below] = 1
    }
  }
  function layer_of(path,   part) {
    if (path ~ /^(src\/)?main\.cpp$/) return "program"
    sub(/^src\//, "", path)
    split(path, part, "/")
    return part[1]
  }
  function blame(what) { print FILENAME ":" FNR ": " what; bad = 1 }
  FNR == 1 {
    own = layer_of(FILENAME)
    if (own != "program" && !(own in known)) blame("folder " own " is not a layer of CMakeLists.txt")
  }
  /^[ \t]*#[ \t]*include[ \t]*"/ {
    target = $0
    sub(/^[^"]*"/, "", target)
    sub(/".*/, "", target)
    other = layer_of(target)
    if (!(other in known)) { if (target !~ /\.inc$/) blame("\"" target "\" names no layer (write \"core/error.hpp\")") }
    else if (own != "program" && !((own, other) in allowed)) blame(own " must not include \"" target "\"")
    if (target ~ /^kernels\/(host|cuda)\// && FILENAME !~ /^kernels\//) blame("only kernels may include \"" target "\"")
  }
  /^[ \t]*#[ \t]*include[ \t]*</ {
    if (/<(Kokkos|oneapi\/dnnl|dnnl)/ && FILENAME !~ /^(kernels\/host\/|src\/device\/[a-z_]+_host\.cpp)/)
      blame("Kokkos and oneDNN belong to kernels/host and device_host.cpp")
    if (/<(cuda|cublas|cudnn|cub\/|nccl|nvtx)/ && FILENAME !~ /^(kernels\/cuda\/|src\/.*_(cuda|nccl)\.cpp)/)
      blame("CUDA belongs to kernels/cuda, x_cuda.cpp and x_nccl.cpp")
    if (/<mpi\.h/ && FILENAME !~ /^src\/parallel\//) blame("MPI belongs to src/parallel")
  }
  END { exit bad }' "${files[@]}"
echo "${#files[@]} files stand on lower layers only"
