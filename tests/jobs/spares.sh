#!/usr/bin/env bash
# spares.sh ROOT: what jobs/train.sbatch does about lost nodes, without Slurm: small scripts replace srun, scontrol and
# the others. Nodes in the file `dead` do not answer; `plan.N` is what the N-th start of the run does.
# shellcheck disable=SC2016 # plans are evaluated later
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" && cat ./*.txt && exit 1; }

mkdir bin
export PATH=$work/bin:$PATH work
play() { # play NAME; its text comes on standard input
  { echo '#!/usr/bin/env bash' && cat; } >"bin/$1"
  chmod +x "bin/$1"
}
play sleep <<'END'
exec /usr/bin/sleep 0.05
END
play srun <<'END'
for argument; do
  case $argument in
    --nodelist=*) nodes=${argument#*=} ;;
    --ntasks=*) tasks=${argument#*=} ;;
    watchdog.lost_after=*) echo "$argument" >"$work/patience.txt" ;;
    printenv)
      tr ',' '\n' <<<"$nodes" | grep -vxF -f "$work/dead" && exit
      exit 1
      ;;
  esac
done
echo "$nodes x $tasks" >>"$work/steps.txt"
echo "${LLMTRAIN_RESTART:--}" >>"$work/told.txt"
mkdir -p "$work/runs/r/status"
/usr/bin/sleep 0.02
touch "$work/runs/r/status/rank-00000"
source "$work/plan.$(wc -l <"$work/steps.txt")"
END
play scontrol <<'END'
case "$1 $2" in
  'show hostnames') tr ',' '\n' <<<"$3" ;;
  update*) echo "${3#NodeList=}" >>"$work/kept.txt" && touch slurm_job_7_resize.sh ;;
  requeue*) echo "$2" >>"$work/requeued.txt" ;;
esac
END
play squeue <<'END'
printf '%s\n' 7.batch 7.3
END
play scancel <<'END'
echo "$*" >>"$work/ended.txt"
[[ ! -e $work/late ]] || { /usr/bin/sleep 0.05 && echo n2 >"$LLMTRAIN_LOST_NODES"; }
END
play sinfo <<'END'
cat "$work/states" 2>/dev/null
END
play llmtrain <<'END'
printf '%s\n' '[run]' 'name = r' "output = $work/runs" '[watchdog]' "lost_after = ${PATIENCE:-2m   ; default}"
END

begin() { # begin PLAN...: what the starts of a new run do
  rm -rf runs states plan.* ./*.txt
  : >dead
  local plan n=0
  for plan; do
    ((++n))
    echo "$plan" >"plan.$n"
  done
}
job() { # job CODE NAME=value...: one life of job 7 on nodes n1 to n4 or NODES
  local expected=$1 list=${NODES:-n1,n2,n3,n4} count
  shift
  count=$(tr ',' '\n' <<<"$list" | wc -l)
  code=0
  env SLURM_JOB_ID=7 SLURM_NTASKS_PER_NODE=2 SLURM_JOB_NODELIST="$list" SLURM_JOB_NUM_NODES="$count" \
    SLURMD_NODENAME=n1 "$@" bash "$root/jobs/train.sbatch" my.ini >out.txt 2>&1 || code=$?
  [[ $code == "$expected" ]] || fail "exit code $code instead of $expected"
  [[ ! -e runs/r/job-7 && -z $(find . -maxdepth 1 -name 'slurm_job*') ]] || fail "something was left behind"
}
is() { # is FILE LINE...
  local file=$1.txt
  shift
  touch "$file"
  [[ $(cat "$file") == "$(printf '%s\n' "$@")" ]] || fail "$file is not: $*"
}
says() { grep -qxF "train.sbatch: $1" out.txt || fail "not said: $1"; }
saved() { echo "mkdir -p $work/runs/r/checkpoints/step-0000000$1;"; }

# A node is lost: the spare takes its place, and the lost one is given back.
begin "$(saved 1) echo n2 >dead; exit 14" 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n3,n4 x 6'
is kept n1,n3,n4
is told - 'exit code 14: n2 does not answer; n4 takes its place; spares left: 0'
says 'exit code 14: n2 does not answer; n4 takes its place; spares left: 0'
is patience watchdog.lost_after=20s
is requeued

# The user's patience is kept.
begin 'exit 0'
job 0 SPARE_NODES=1 PATIENCE='2m   ; deck'
[[ ! -e patience.txt ]] || fail "the deck's watchdog.lost_after is replaced"

# No spare: fewer nodes, down to this one.
begin 'echo n2 >dead; exit 14' 'echo n3 >>dead; exit 137' 'exit 0'
NODES=n1,n2,n3 job 0 WITHOUT_SPARES=shrink
is steps 'n1,n2,n3 x 6' 'n1,n3 x 4' 'n1 x 2'
says 'exit code 137: n3 does not answer, and none takes its place: 1 of 3 nodes go on'
# log.txt begins anew as long as there is no checkpoint
[[ $(tail -n 1 told.txt) == 'exit code 14: '*' 2 of 3 nodes go on; then exit code 137: '* ]] || fail "what the run is told"

# No spare: another place in the queue. The next life tells the run why.
begin 'echo n2 >dead; exit 14' "$(saved 1) echo n3 >>dead; exit 14" 'exit 0'
job 0 SPARE_NODES=1
is requeued 7
is kept n1,n3,n4 n1,n4
says 'exit code 14: n3 does not answer; no spare is left, requeued'
job 0 SPARE_NODES=1 SLURM_RESTART_COUNT=1
[[ $(tail -n 1 told.txt) == 'exit code 14: n3 does not answer; no spare is left, requeued' ]] || fail "the next life"
[[ ! -e runs/r/requeued ]] || fail "a reason remains"
begin 'exit 0'
job 0 SPARE_NODES=1 SLURM_RESTART_COUNT=1
is told 'requeued by Slurm'

# A job of a chain uses its spares, too, and leaves the rest to the next job.
begin 'echo n2 >dead; exit 14' 'echo n3 >>dead; exit 14'
job 14 SPARE_NODES=1 MAY_REQUEUE=no
is steps 'n1,n2,n3 x 6' 'n1,n3,n4 x 6'
is requeued
says 'exit code 14: n3 does not answer; no spare is left, not requeued (exit code 14)'

# The watchdog names a node that answers, and the step would not end.
begin 'echo n3.cluster.org >"$LLMTRAIN_LOST_NODES"; exec /usr/bin/sleep 100' 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n2,n4 x 6'
is ended '--signal=KILL 7.3'
says 'exit code 76: n3 hangs; n4 takes its place; spares left: 0'

# A node is lost while the run starts, or Slurm misses it later: the step is ended. A spare that is lost is given back.
begin 'rm "$work/runs/r/status/rank-00000"; echo n3 >dead; exec /usr/bin/sleep 100' 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n2,n4 x 6'
begin 'echo n3 >dead; printf "%s\n" "n2 mix" "n3 mix*" >states; exec /usr/bin/sleep 100' 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n2,n4 x 6'
# A rank on the lost node lives on, and reports that the ranks hang that were killed.
begin 'rm "$work/runs/r/status/rank-00000"; echo n3 >dead; exec /usr/bin/sleep 100' 'exit 0'
touch late
job 0 SPARE_NODES=1
rm late
is steps 'n1,n2,n3 x 6' 'n1,n2,n4 x 6'
begin 'echo n4 >dead; echo "n4 mix*" >states; until grep -q spare out.txt; do sleep 1; done; exit 14' 'exit 0'
job 0 SPARE_NODES=2
is steps 'n1,n2 x 4' 'n1,n2 x 4'
is kept n1,n2,n3
says 'n4, a spare, does not answer'
says 'exit code 14: n4, a spare, does not answer; the others answer and go on'

# Nodes that a replay has named are left out; this node stays in the job, since the script runs on it.
begin 'echo n1 >runs/r/excluded_nodes; exit 76' 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n2,n3,n4 x 6'
is kept n1,n2,n3,n4
begin 'exit 0'
mkdir -p runs/r && echo n2 >runs/r/excluded_nodes
job 0
is steps 'n1,n3,n4 x 6'
is told 'n2 is in excluded_nodes, and none takes its place: 3 of 4 nodes go on'

# A process is lost, but no node: the same nodes try again once; then others may, by a requeue.
begin 'exit 139' 'exit 139'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n2,n3 x 6'
is requeued 7
says 'exit code 139: all nodes answer and go on'
says 'exit code 139 again though all nodes answer, requeued'

# Slurm itself does not answer: nothing is concluded.
begin 'printf "%s\n" n1 n2 n3 n4 >dead; exit 14' 'exit 0'
job 0 SPARE_NODES=1
is steps 'n1,n2,n3 x 6' 'n1,n2,n3 x 6'
is kept

# Requests to stop and final errors are as without spares; too few nodes for the deck are a reason to requeue.
begin 'exit 75'
job 0 SPARE_NODES=1
is requeued 7
for final in 65 78; do
  begin "exit $final"
  job "$final" SPARE_NODES=1
  is requeued
done
begin 'echo n2 >dead; exit 14' 'exit 78'
job 0 WITHOUT_SPARES=shrink
is requeued 7
says 'exit code 78 on 3 nodes, requeued'
begin
job 64 SPARE_NODES=4
says 'SPARE_NODES=4 leaves none of the 4 nodes of this job to train on: ask for more'
job 64 WITHOUT_SPARES=no
echo "lost nodes are left out as they should"
