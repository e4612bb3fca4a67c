#!/usr/bin/env bash
# python.sh ROOT: the benchmarks' scripts of Python and the recipes for Spack compile; scripts for GPUs, which run on
# few machines, print their requirements without torch; recipes name the release that CMake would fetch, and Spack's
# environments are strings to a YAML reader.
set -euo pipefail
if ! python3 -c ''; then
  echo "skipped: python3 does not start"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
cd "$1/benchmarks"
python3 - ./*.py peers/*.py ../spack_repo/llmtrain/packages/*/package.py <<'END'
import sys
for path in sys.argv[1:]:
    with open(path) as f:
        compile(f.read(), path, "exec")
END
for package in inih uPlot; do
  commit=$(sed -n "s/^set(LLMTRAIN_RELEASE_$package \".*;\(.*\);.*\")\$/\1/p" ../cmake/Fetch.cmake)
  if [[ -z $commit ]] || ! grep -q "commit=\"$commit\"" "../spack_repo/llmtrain/packages/${package,,}/package.py"; then
    echo "spack_repo has another $package than cmake/Fetch.cmake ($commit)"
    exit 1
  fi
done
unquoted=$(grep -nE '^ *- [^"#]*:( |$)' ../spack.yaml ../spack/cuda/spack.yaml || true)
[[ -z $unquoted ]] || { echo "a colon makes these specs mappings: quote them"$'\n'"$unquoted" && exit 1; }
scripts=(gpu_*.py)
((${#scripts[@]} >= 3)) || { echo "too few scripts for GPUs: ${scripts[*]}" && exit 1; }
for script in "${scripts[@]}"; do
  help=$(python3 "$script" --help)
  # run_gpu_tests.sh passes these to every script.
  [[ $help == *" --programs "* && $help == *"[--rounds "* ]] || { echo "$script --help: $help" && exit 1; }
done
! python3 gpu_kernels.py --nonsense 2>/dev/null || { echo "gpu_kernels.py takes any option" && exit 1; }
echo "${#scripts[@]} scripts for GPUs"
