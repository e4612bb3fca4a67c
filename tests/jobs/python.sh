#!/usr/bin/env bash
# python.sh ROOT: the benchmarks' scripts of Python compile, and those for GPUs, which run on machines that few have, say
# what they want: that takes no torch.
set -euo pipefail
if ! python3 -c ''; then
  echo "skipped: python3 does not start"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
cd "$1/benchmarks"
python3 - ./*.py peers/*.py <<'END'
import sys
for path in sys.argv[1:]:
    with open(path) as f:
        compile(f.read(), path, "exec")
END
scripts=(gpu_*.py)
((${#scripts[@]} >= 3)) || { echo "too few scripts for GPUs: ${scripts[*]}" && exit 1; }
for script in "${scripts[@]}"; do
  help=$(python3 "$script" --help)
  # run_gpu_tests.sh gives every one these.
  [[ $help == *" --programs "* && $help == *"[--rounds "* ]] || { echo "$script --help: $help" && exit 1; }
done
! python3 gpu_kernels.py --nonsense 2>/dev/null || { echo "gpu_kernels.py takes any option" && exit 1; }
echo "${#scripts[@]} scripts for GPUs"
