# shellcheck shell=bash
# Sourced by scripts that run the programs of an unpacked bundle (cmake/bundle.sh), or of a folder of the same form whose
# programs find their libraries themselves.

# find_libraries BUNDLE LINKS: prepares `run` and `launch`. Libraries that are not in the bundle are the driver's, and
# CUDA's of a toolkit or of PyTorch's packages. LINKS is a folder for links to them. Sets `missing`, the names of those
# that were not found, `by_loader`, which a command begins with, and `python`.
find_libraries() {
  local bundle=$1 links=$2 libraries=$1/lib packages place name found loader
  missing=() by_loader=()
  python=${PYTHON:-$(command -v python3)}
  loader=$(compgen -G "$bundle/lib/ld-linux*.so.*" | sed 1q) || true
  bundled_launcher=(mpirun --oversubscribe --bind-to none)
  [[ -n $loader ]] || return 0
  packages=$([[ -z $python ]] || "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
  local places=("${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib,targets/x86_64-linux/lib} "$packages"/nvidia/{cu13,cublas,cudnn,nccl,cuda_nvrtc}/lib
    /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 /lib/x86_64-linux-gnu)
  for name in $(cat "$bundle/lib/from_cuda.txt") libcuda.so.1; do
    found=
    for place in "${places[@]}"; do
      [[ -e $place/$name ]] && found=$place && break
    done
    # A link, since the other libraries of a system's folder must not take precedence over the bundle's.
    if [[ -n $found ]]; then mkdir -p "$links" && ln -sf "$found/$name" "$links/$name"; else missing+=("$name"); fi
  done
  [[ ! -e $links ]] || libraries+=:$links
  for place in "${places[@]}"; do # dependencies of those libraries
    case $place in *nvidia* | *cuda*) [[ -d $place ]] && libraries+=:$place ;; esac
  done
  by_loader=("$loader" --library-path "$libraries")
  bundled_launcher=("${by_loader[@]}" "$bundle/bin/prterun" --personality ompi --map-by :OVERSUBSCRIBE --bind-to none)
  export OPAL_PREFIX=$bundle PMIX_PREFIX=$bundle PRTE_PREFIX=$bundle PMIX_MCA_mca_base_component_path=$bundle/lib/pmix
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

run() { "${by_loader[@]}" "$@"; }
launch() { # launch RANKS COMMAND...
  local count=$1
  shift
  if ((count == 1)); then run "$@"; else "${bundled_launcher[@]}" -n "$count" "${by_loader[@]}" "$@"; fi
}
# wrap FILE COMMAND...: writes a program that runs the command with further arguments.
wrap() {
  local file=$1
  shift
  printf '#!/bin/sh\nexec%s "$@"\n' "$(printf ' "%s"' "$@")" >"$file"
  chmod +x "$file"
}
