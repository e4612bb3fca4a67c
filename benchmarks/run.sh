#!/usr/bin/env bash
# Prints the tables of docs/performance.md, measured on this machine: llmtrain beside PyTorch (training.py), and the
# levels of recomputation (recompute.py). Nothing else should run meanwhile.
#
#   benchmarks/run.sh LLMTRAIN [ROUNDS]
#
#   LLMTRAIN   the program, e.g. build/host/llmtrain
#   ROUNDS     of A B, default 5
# Environment: PYTHON (python3; needs torch and safetensors), MPIRUN (mpirun).
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 64
fi
program=$(realpath -- "$1")
rounds=${2:-5}
here=$(cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1

# row OPTION...: the row of one case; what training.py says on the way goes to stderr.
row() {
  "$python" "$here/training.py" "$program" --rounds "$rounds" --markdown "$@" | tee /dev/stderr | tail -n 1
}

printf 'On %s.\n\n' "$("$python" -c "import sys; sys.path.insert(0, '$here'); import training; print(training.processor())")"
printf '| what | llmtrain, tokens/s | PyTorch, tokens/s | ratio | peak memory, ratio |\n|---|---|---|---|---|\n'
row --model gpt2-124m --batch 4 --precision bf16
row --model gpt2-124m --batch 1 --precision bf16
row --model gpt2-124m --batch 4 --precision fp32
row --model gpt2-124m --batch 1 --precision fp32
row --model llama-300m --length 512 --batch 1 --accumulate 4 --precision bf16
printf '\n'
"$python" "$here/recompute.py" "$program" --model gpt2-124m --batch 4 --rounds "$rounds"
