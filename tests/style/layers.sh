#!/usr/bin/env bash
# layers.sh ROOT: no file includes a layer that its own does not depend on. The layers and their dependencies are read
# from CMakeLists.txt. Modules (x.hpp and x.cpp) do not include each other in a circle, and no folder has more than 40
# files beside its subfolders. Also: Kokkos, oneDNN, CUDA, NCCL and MPI stay where the architecture puts them.
set -euo pipefail
cd "$1"

# Lines "layer dependency dependency ...", lowest first.
layers=$(sed -n -E 's/^llmtrain_layer\(([a-z]+) *(.*)\)$/\1 \2/p' CMakeLists.txt |
  awk '{ line = $1; for (i = 2; i <= NF; ++i) if (sub(/^llmtrain::/, "", $i)) line = line " " $i; print line }')
[[ $(wc -l <<<"$layers") -ge 2 ]] || { echo "no layers found in CMakeLists.txt" && exit 1; }

mapfile -t files < <(find src kernels -type f \( -name '*.cpp' -o -name '*.hpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
((${#files[@]} > 0)) || { echo "no sources found under src and kernels" && exit 1; }

# A file an operation or a command: these folders may have more.
large=$(printf '%s\n' "${files[@]}" | sed 's#/[^/]*$##' | sort | uniq -c |
  awk '$1 > 40 && $2 !~ /^(src\/tool|kernels|kernels\/cuda)$/ { print $2 ": " $1 " files; a folder has at most 40" }')
[[ -z $large ]] || { echo "$large" && exit 1; }

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
  function module_of(path) {
    sub(/^src\//, "", path)
    sub(/\.[a-z]+$/, "", path)
    return path
  }
  # Leaves the modules from which a circle can be reached.
  function trim(   module, edge, removed) {
    do {
      removed = 0
      delete leads
      for (edge in place) if (from[edge] in left && to[edge] in left) leads[from[edge]] = edge
      for (module in left) if (!(module in leads)) { delete left[module]; ++removed }
    } while (removed > 0)
  }
  function find_circles(   start, module, path, places, seen) {
    for (trim(); length(left) > 0; trim()) {
      delete seen
      for (start in left) break
      for (module = start; !(module in seen); module = to[leads[module]]) seen[module] = 1
      path = start = module
      places = ""
      do {
        delete left[module]
        places = places place[leads[module]] ": "
        module = to[leads[module]]
        path = path " -> " module
      } while (module != start)
      print places "a circle of modules: " path
      bad = 1
    }
  }
  FNR == 1 {
    own = layer_of(FILENAME)
    self = module_of(FILENAME)
    left[self] = 1
    if (own != "program" && !(own in known)) blame("folder " own " is not a layer of CMakeLists.txt")
  }
  /^[ \t]*#[ \t]*include[ \t]*"/ {
    target = $0
    sub(/^[^"]*"/, "", target)
    sub(/".*/, "", target)
    other = layer_of(target)
    module = module_of(target)
    if (module != self) {
      edge = self SUBSEP module
      if (!(edge in place)) place[edge] = FILENAME ":" FNR
      from[edge] = self
      to[edge] = module
    }
    if (!(other in known)) { if (target !~ /\.inc$/) blame("\"" target "\" names no layer (write \"core/error.hpp\")") }
    else if (own != "program" && !((own, other) in allowed)) blame(own " must not include \"" target "\"")
    if (target ~ /^kernels\/(host|cuda)\// && FILENAME !~ /^kernels\//) blame("only kernels may include \"" target "\"")
  }
  /^[ \t]*#[ \t]*include[ \t]*</ {
    if (/<(Kokkos|oneapi\/dnnl|dnnl)/ && FILENAME !~ /^(kernels\/host\/|src\/device\/[a-z_]+_host\.cpp)/)
      blame("Kokkos and oneDNN belong to kernels/host and device_host.cpp")
    if (/<(cuda|cublas|cudnn|cub\/|nccl|nvtx)/ && FILENAME !~ /^(kernels\/cuda\/|src\/.*_(cuda\.cpp|nccl\.[ch]pp))/)
      blame("CUDA belongs to kernels/cuda, x_cuda.cpp, x_nccl.cpp and x_nccl.hpp")
    if (/<mpi\.h/ && FILENAME !~ /^src\/parallel\//) blame("MPI belongs to src/parallel")
  }
  END {
    find_circles()
    exit bad
  }' "${files[@]}"
echo "${#files[@]} files stand on lower layers only, without circles"
