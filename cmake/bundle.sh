#!/usr/bin/env bash
# Makes a relocatable bundle of the CUDA build and of its tests, for a machine that has a GPU and neither this machine's
# libraries nor its sources.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: cmake/bundle.sh BUILD BUNDLE.tar.xz [--only PATTERN] [--quick] [--with-cuda] [--limit MIB]

BUILD is a folder that the preset cuda built (all targets). The bundle has the programs, the tests, their reference data,
the shared libraries that they need with libc and its loader, Open MPI's launcher, the benchmarks, and run_gpu_tests.sh,
which runs them.

  --only PATTERN  of the tests and benchmarks (a shell pattern; all)
  --quick       a larger file in less time
  --with-cuda   also cuBLAS, cuDNN and NCCL, of 0.5 GB and more. Without it they are the GPU machine's: of its CUDA
                toolkit or of PyTorch's packages. The driver's libraries always are.
  --limit MIB   refuse to write a larger file (64; 0 = none; with --with-cuda none)
TEXT
}

limit=64 only='*' level=9 with_cuda=false arguments=()
while (($# > 0)); do
  case $1 in
    --with-cuda) with_cuda=true limit=0 ;;
    --quick) level=0 ;;
    --only) only=${2:?--only wants a pattern} && shift ;;
    --limit) limit=${2:?--limit wants a number} && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) echo "bundle.sh: unknown option '$1' (--help lists them)" >&2 && exit 64 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
((${#arguments[@]} == 2)) || { usage >&2 && exit 64; }
root=$(dirname "$(dirname "$(readlink -f "$0")")")
build=$(readlink -f "${arguments[0]}") output=$(readlink -f "${arguments[1]}")
grep -q '^LLMTRAIN_DEVICE:.*=cuda$' "$build/CMakeCache.txt" 2>/dev/null ||
  { echo "bundle.sh: $build was not made with the preset cuda" >&2 && exit 66; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/llmtrain-gpu
mkdir -p "$bundle/lib" "$bundle/tests" "$bundle/gpu_tests"
cmake --install "$build" --prefix "$bundle" --strip >/dev/null
cmake --install "$build" --prefix "$bundle" --strip --component gpu_tests >/dev/null
find "$bundle/gpu_tests" -type f ! -name "$only" -delete
cp -r "$root/tests/reference" "$bundle/tests/reference"
cp -r "$root/benchmarks" "$root/inputs" "$bundle"
find "$bundle" -name '__pycache__' -prune -exec rm -r {} +
install -m 755 "$root/tests/cuda/run_gpu_tests.sh" "$bundle/run_gpu_tests.sh"

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

# Libraries of libraries too; the driver's never: they belong to the kernel of the machine with the GPU.
driver='^(libcuda|libnvidia-.*|libnvcuvid)\.so'
of_cuda='^(libcublas|libcublasLt|libcudnn.*|libnccl|libnvrtc.*|libnvJitLink)\.so'
mapfile -t programs < <(find "$bundle" -type f -exec sh -c 'head -c 4 "$1" | grep -q ELF' _ {} \; -print)
left_out=()
while read -r name path; do
  [[ ! $name =~ $driver ]] || continue
  if ! $with_cuda && [[ $name =~ $of_cuda ]]; then left_out+=("$name") && continue; fi
  [[ -r $path ]] || { echo "bundle.sh: $name is not found: $path" >&2 && exit 66; }
  [[ -e $bundle/lib/$name ]] || cp -L "$path" "$bundle/lib/$name"
done < <(ldd "${programs[@]}" 2>/dev/null |
  sed -nE 's/^\t(\S+) => (not found|\S+).*$/\1 \2/p; s/^\t(\/\S*\/(ld-\S+)) \(.*$/\2 \1/p' | sort -u)
strip --strip-unneeded "$bundle"/lib/*.so* 2>/dev/null || true
printf '%s\n' "${left_out[@]}" >"$bundle/lib/from_cuda.txt"

{
  "$bundle/bin/llmtrain" --version
  echo "libc of the bundle: $(ldd --version | sed -n '1s/.* //p')"
  sed -n 's/^CMAKE_CUDA_ARCHITECTURES[^=]*=/GPU architectures: /p' "$build/CMakeCache.txt"
  echo "libraries of the machine with the GPU: the driver's, ${left_out[*]:-none}"
} | tee "$bundle/VERSIONS"
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -cf - llmtrain-gpu | xz "-$level" >"$output.part"
size=$(($(stat -c %s "$output.part") / 1048576 + 1))
if ((limit > 0 && size > limit)); then
  rm "$output.part"
  echo "bundle.sh: the bundle has $size MiB, the limit is $limit: --limit 0 lifts it" >&2
  exit 73
fi
mv "$output.part" "$output"
echo "$output: $size MiB; unpack it anywhere and run llmtrain-gpu/run_gpu_tests.sh"
