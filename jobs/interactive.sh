#!/usr/bin/env bash
# A run in the foreground, to try a deck: asks Slurm for nodes, runs, gives them back.
#
#   jobs/interactive.sh inputs/small.ini [section.key=value ...]
#   NODES=2 TASKS=4 CORES=4 TIME=00:30:00 jobs/interactive.sh my.ini
#
# Ctrl-C once: srun tells how the ranks are; twice within a second: they get SIGINT, save and end with exit code 75.
set -euo pipefail

[[ $# -ge 1 ]] || { echo "usage: jobs/interactive.sh DECK [section.key=value ...]" >&2 && exit 64; }
export OMP_NUM_THREADS=${CORES:-2}
exec srun --nodes="${NODES:-1}" --ntasks-per-node="${TASKS:-2}" --cpus-per-task="$OMP_NUM_THREADS" \
  --time="${TIME:-01:00:00}" --kill-on-bad-exit=1 "${LLMTRAIN:-llmtrain}" "$@"
