#!/usr/bin/env bash
# For sites that do not allow requeueing: submits N jobs, each of which starts when the one before has ended, for any
# reason. Each job resumes the run; jobs that remain after the end of the run find it finished and exit at once.
#
#   jobs/chain.sh 5 inputs/medium.ini [section.key=value ...]
#   OPTIONS="--time=12:00:00 --nodes=4" jobs/chain.sh 5 my.ini      options of sbatch
#   SPARE_NODES=1 OPTIONS="--nodes=5" jobs/chain.sh 5 my.ini        4 nodes train, the fifth replaces a lost one
set -euo pipefail

[[ $# -ge 2 && $1 =~ ^[1-9][0-9]*$ ]] || { echo "usage: jobs/chain.sh N DECK [section.key=value ...]" >&2 && exit 64; }
count=$1
shift
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
read -ra options <<<"${OPTIONS:-}"
job=
for ((i = 0; i < count; ++i)); do
  # Instead of requeueing the script ends with the run's exit code. Spare nodes replace lost ones as in other jobs.
  job=$(MAY_REQUEUE=no sbatch --parsable --export=ALL --no-requeue "${options[@]}" ${job:+--dependency=afterany:$job} \
    "$here/train.sbatch" "$@")
  job=${job%%;*}
  echo "job $job"
  if ((i > 0)); then continue; fi
  # The first job can replace a run; the others resume it.
  for argument; do
    shift
    [[ $argument == run.overwrite=* ]] || set -- "$@" "$argument"
  done
  set -- "$@" run.overwrite=false
done
