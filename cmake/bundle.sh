#!/usr/bin/env bash
# Makes a relocatable bundle of the CUDA build and of its tests, for a machine that has a GPU and neither this machine's
# libraries nor its sources.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: cmake/bundle.sh BUILD BUNDLE.tar.xz [--only PATTERN] [--programs] [--quick] [--with-cuda] [--host BUILD] [--limit MIB]

BUILD is a folder that the preset cuda built (all targets). The bundle has the programs, the tests, their reference data,
the shared libraries that they need with libc and its loader, Open MPI's launcher, the benchmarks, and run_gpu_tests.sh,
which runs them. A name in .tar is written without compression.

  --only PATTERN  of the tests and benchmarks (a shell pattern; all)
  --programs    for benchmarks/gpu_visit.sh in a checkout of these sources: llmtrain, the probe, the kernels' benchmark and the
                tests of device, kernels and layers, with libraries, and nothing that a checkout has. Only their targets need be built
  --quick       a larger file in less time
  --with-cuda   also cuBLAS, cuDNN, NCCL and NVRTC, of 1.3 GB unpacked. Without it they are the GPU machine's: of its CUDA
                toolkit or of PyTorch's packages. The driver's libraries always are. CUDNN_PATH names the folder above
                cuDNN's lib where it is not beside the toolkit.
  --host BUILD  also the programs of a folder that the preset host built, to exchange checkpoints with
  --limit MIB   refuse to write a larger file (64, with --programs 44; 0 = none; with --with-cuda none)
TEXT
}

limit='' only='*' level=9 with_cuda=false programs_alone=false host='' arguments=()
value() { # value OPTION VALUE...: prints the value that follows the option, which is required
  [[ -n ${2:-} ]] || { echo "bundle.sh: $1 needs a value (--help lists the options)" >&2 && exit 64; }
}
while (($# > 0)); do
  case $1 in
    --with-cuda) with_cuda=true limit=0 ;;
    --programs) programs_alone=true ;;
    --host) value "$@" && host=$2 && shift ;;
    --quick) level=0 ;;
    --only) value "$@" && only=$2 && shift ;;
    --limit) value "$@" && limit=$2 && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) echo "bundle.sh: unknown option '$1' (--help lists them)" >&2 && exit 64 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
((${#arguments[@]} == 2)) || { usage >&2 && exit 64; }
[[ -n $limit ]] || { $programs_alone && limit=44 || limit=64; }
[[ $limit =~ ^[0-9]{1,9}$ ]] || { echo "bundle.sh: --limit is '$limit': give a number of MiB" >&2 && exit 64; }
root=$(dirname "$(dirname "$(readlink -f "$0")")")
build=$(readlink -m "${arguments[0]}") output=$(readlink -m "${arguments[1]}")
made_for() { # made_for DEVICE FOLDER
  grep -q "^LLMTRAIN_DEVICE:.*=$1\$" "$2/CMakeCache.txt" 2>/dev/null ||
    { echo "bundle.sh: $2 was not built with the preset $1" >&2 && exit 66; }
}
made_for cuda "$build"
# shellcheck disable=SC2053 # a pattern
if [[ gpu_kernels_bench == $only && ! (-x $build/benchmarks/gpu_kernels_bench &&
  $(grep '^LLMTRAIN_BENCHMARKS:' "$build/CMakeCache.txt") =~ =(ON|1|TRUE|YES)$) ]]; then
  echo "bundle.sh: $build has no gpu_kernels_bench, which run_gpu_tests.sh --benchmarks runs: build with LLMTRAIN_BENCHMARKS=ON," \
    "as the preset cuda does, or omit it with --only" >&2
  exit 66
fi
[[ -d $(dirname "$output") ]] || { echo "bundle.sh: there is no folder for $output" >&2 && exit 73; }
if [[ -n $host ]]; then host=$(readlink -m "$host") && made_for host "$host"; fi

# install_all: what the build installs, its tests, and what they need of the sources.
install_all() {
  cmake --install "$build" --prefix "$bundle" --strip >/dev/null
  cmake --install "$build" --prefix "$bundle" --strip --component gpu_tests >/dev/null
  find "$bundle/gpu_tests" -type f ! -name "$only" -delete
  if [[ -n $host ]]; then
    cmake --install "$host" --prefix "$work/host" --strip >/dev/null
    mkdir "$bundle/host"
    mv "$work/host/bin" "$bundle/host/bin"
    ln -s ../lib "$bundle/host/lib"
  fi
  mkdir -p "$bundle/tests/cuda" "$bundle/tests/parallel"
  cp -r "$root/tests/reference" "$bundle/tests/reference"
  cp "$root"/tests/cuda/{bundled.sh,gpu_runs.sh,sanitizer.sh,small.ini} "$bundle/tests/cuda"
  cp "$root/tests/parallel/job_ends.sh" "$bundle/tests/parallel"
  cp -r "$root/benchmarks" "$root/inputs" "$bundle"
  find "$bundle" -name '__pycache__' -prune -exec rm -r {} +
  install -m 755 "$root/tests/cuda/run_gpu_tests.sh" "$bundle/run_gpu_tests.sh"
}
# install_programs: the programs of a visit, stripped.
install_programs() {
  local name
  for name in llmtrain benchmarks/{gpu_probe,gpu_kernels_bench} tests/test_{device,kernels,layers}; do
    # shellcheck disable=SC2053 # a pattern
    [[ ${name##*/} == llmtrain || ${name##*/} == $only ]] || continue
    [[ -x $build/$name ]] || { echo "bundle.sh: $build/$name was not built" >&2 && exit 66; }
    if [[ $name == llmtrain ]]; then set -- bin; else set -- gpu_tests; fi
    install -D -s "$build/$name" "$bundle/$1/${name##*/}"
  done
}

work=$(mktemp -d)
trap 'rm -rf "$work" "$output.part"' EXIT
trap 'exit 143' TERM INT HUP
bundle=$work/llmtrain-gpu
mkdir -p "$bundle/lib" "$bundle/share" "$bundle/gpu_tests"
if $programs_alone; then install_programs; else install_all; fi

# Open MPI's launcher, its texts and PMIx's plugins, for several ranks on a machine without them.
launcher=$(command -v prterun || true)
if [[ -n $launcher ]]; then
  cp -L "$launcher" "$bundle/bin/prterun"
  for folder in /usr/share/openmpi /usr/share/pmix /usr/share/prte /usr/share/pmix2; do
    [[ ! -d $folder ]] || cp -rL "$folder" "$bundle/share/"
  done
  for folder in /usr/lib/*/pmix2/lib/pmix; do
    [[ ! -d $folder ]] || cp -rL "$folder" "$bundle/lib/pmix"
  done
fi

# Includes indirect libraries, but never the driver's, which belong to the kernel of the machine with the GPU.
driver='^(libcuda|libnvidia-.*|libnvcuvid)\.so'
of_cuda='^(libcublas|libcublasLt|libcudnn.*|libnccl|libnvrtc.*|libnvJitLink)\.so'
mapfile -t programs < <(find "$bundle" -type f -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
left_out=() places=()
if [[ -n ${CUDNN_PATH:-} ]]; then places=("$CUDNN_PATH"/lib{,64}); fi
while read -r name path; do
  [[ ! $name =~ $driver ]] || continue
  if [[ $name =~ $of_cuda ]]; then
    if ! $with_cuda; then left_out+=("$name") && continue; fi
    places+=("${path%/*}")
  fi
  [[ -r $path ]] || { echo "bundle.sh: $name is not found: $path" >&2 && exit 66; }
  [[ -e $bundle/lib/$name ]] || cp -L "$path" "$bundle/lib/$name"
done < <(ldd "${programs[@]}" 2>/dev/null |
  sed -nE 's/^\t(\S+) => (not found|\S+).*$/\1 \2/p; s/^\t(\/\S*\/(ld-\S+)) \(.*$/\2 \1/p' | sort -u)

# Libraries that are loaded at run time, which ldd does not list: cuDNN with the sublibraries of graphs (its older
# interfaces have their own), and NVRTC, which compiles for engines of cuDNN's and for cuBLASLt.
folder_of() { # folder_of LIBRARY: prints the first folder that has it
  local place
  for place in "${places[@]}"; do
    if [[ -e $place/$1 ]]; then echo "$place" && return; fi
  done
  echo "bundle.sh: $1 is not found beside the CUDA toolkit's libraries" >&2
  exit 66
}
major() { # major NAME: major version that CMake found
  sed -nE "s/^FIND_PACKAGE_MESSAGE_DETAILS_$1:.*\[v([0-9]+)\..*/\1/p" "$build/CMakeCache.txt"
}
if $with_cuda; then
  mapfile -t -O "${#places[@]}" places < <(ldconfig -p | sed -nE 's#.* => (/.*)/[^/]*$#\1#p' | sort -u)
  nvrtc=$(major CUDAToolkit) cudnn=$(major CUDNN)
  place=$(folder_of "libnvrtc.so.$nvrtc")
  opened=("$place/libnvrtc.so.$nvrtc" "$place/libnvrtc-builtins.so.$nvrtc".*)
  if [[ -n $cudnn ]]; then
    place=$(folder_of "libcudnn.so.$cudnn")
    opened+=("$place/libcudnn"{,_graph,_heuristic,_engines_precompiled,_engines_runtime_compiled}".so.$cudnn")
  else
    echo "bundle.sh: neither the build nor the bundle has cuDNN: attention is llmtrain's own" >&2
  fi
  for path in "${opened[@]}"; do
    [[ -r $path ]] || { echo "bundle.sh: $path is not found" >&2 && exit 66; }
    cp -L "$path" "$bundle/lib"
  done
fi
for path in "$bundle"/lib/*.so*; do
  [[ ${path##*/} =~ $of_cuda ]] || strip --strip-unneeded "$path" 2>/dev/null || true
done
printf '%s\n' "${left_out[@]}" >"$bundle/lib/from_cuda.txt"

{
  "$bundle/bin/llmtrain" --version
  echo "libc of the bundle: $(ldd --version | sed -n '1s/.* //p')"
  sed -n 's/^CMAKE_CUDA_ARCHITECTURES[^=]*=/GPU architectures: /p' "$build/CMakeCache.txt"
  echo "libraries of the machine with the GPU: the driver's, ${left_out[*]:-none}"
} | tee "$bundle/VERSIONS"
compress=(xz "-$level" -T0)
# The programs have much in common, farther apart than a usual dictionary reaches. Compressing takes 3 GiB of memory.
if $programs_alone && ((level > 0)); then compress=(xz -T1 --x86 "--lzma2=preset=9e,dict=256MiB"); fi
[[ $output != *.tar ]] || compress=(cat)
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -cf - llmtrain-gpu | "${compress[@]}" >"$output.part"
size=$(($(stat -c %s "$output.part") / 1048576 + 1))
if ((limit > 0 && size > limit)); then
  rm "$output.part"
  echo "bundle.sh: the bundle has $size MiB, and the limit is $limit: --limit 0 removes it" >&2
  exit 73
fi
mv "$output.part" "$output"
how='unpack it anywhere and run llmtrain-gpu/run_gpu_tests.sh'
! $programs_alone || how="give it to benchmarks/gpu_visit.sh in a checkout of these sources"
echo "$output: $size MiB, $(du -sm "$bundle" | cut -f1) MiB unpacked; $how"
