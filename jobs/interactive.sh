#!/usr/bin/env bash
# Runs a deck in the foreground, to try it: requests nodes from Slurm, runs, and releases them.
#
#   jobs/interactive.sh inputs/small.ini [section.key=value ...]
#   NODES=2 TASKS=4 CORES=4 TIME=00:30:00 jobs/interactive.sh my.ini
#   OPTIONS="--partition=debug --account=mine" jobs/interactive.sh my.ini      more options of srun
#
# Ctrl-C: the ranks get SIGINT, save and end with exit code 75; the same command resumes. Ctrl-C twice within a second
# ends everything at once (--disable-status; without it the first Ctrl-C prints the state of the ranks, and the second
# ends them unsaved). Inside an allocation of salloc it uses that allocation.
set -euo pipefail

[[ $# -ge 1 ]] || { echo "usage: jobs/interactive.sh DECK [section.key=value ...]" >&2 && exit 64; }
export OMP_NUM_THREADS=${CORES:-2}
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring} # see train.sbatch
read -ra options <<<"${OPTIONS:-}"
exec srun --nodes="${NODES:-1}" --ntasks-per-node="${TASKS:-2}" --cpus-per-task="$OMP_NUM_THREADS" --cpu-bind=cores \
  --time="${TIME:-01:00:00}" --kill-on-bad-exit=1 --disable-status \
  "${options[@]}" "${LLMTRAIN:-llmtrain}" "$@"
