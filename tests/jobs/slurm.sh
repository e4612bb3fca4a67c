#!/usr/bin/env bash
# slurm.sh ROOT LLMTRAIN: jobs/ on a real Slurm with at least 3 nodes: USR1 and requeue, `scontrol requeue` from outside, a
# time limit, other node counts, a lost step, a stopped rank; every ledger is that of a run of one process to which
# nothing happened.
# Exit code 77 where there is no cluster.
set -euo pipefail
root=$1 program=$2
nodes=$(sinfo --noheader --format=%D 2>/dev/null | head -n 1) || nodes=0
[[ ${nodes:-0} -ge 3 ]] || { echo "no Slurm with 3 nodes here" && exit 77; }
work=$(mktemp -d)
trap 'scancel --quiet "${jobs[@]:-}" 2>/dev/null || true; rm -rf "$work"' EXIT
jobs=()
cd "$work"

for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = ${LLMTRAIN_SLURM_STEPS:-400}
output = $work/runs
[model]
d_model = 24
n_layers = 2
n_heads = 2
dropout = 0.1
[data]
train = $work/text.txt
[batch]
sequence_length = 16
global = 6
[evaluation]
every_steps = 70
[precision]
compute = fp32
[checkpoint]
every_steps = 50
[watchdog]
lost_after = 15s
END

export LLMTRAIN=$program SLURM_PMIX_FENCE=ring
OMP_NUM_THREADS=1 "$program" deck.ini run.name=whole >whole.txt

submit() { # name, options of sbatch...: sets job
  local name=$1
  shift
  job=$(sbatch --parsable --export=ALL --ntasks-per-node=1 --cpus-per-task=1 --output="$work/$name.out" --time=10 "$@" \
    "$root/jobs/train.sbatch" "$work/deck.ini" "run.name=$name")
  jobs+=("$job")
}
wait_until() { # seconds, command...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { echo "waited in vain: $*" && cat "$work"/*.out && exit 1; }
    sleep 0.3
  done
}
steps() { [[ -e runs/$1/ledger.jsonl && $(wc -l <"runs/$1/ledger.jsonl") -ge $2 ]]; }
finished() { [[ -e runs/$1/finished.json ]]; }
same() {
  cmp "runs/$1/ledger.jsonl" runs/whole/ledger.jsonl || { cat "$1.out" && exit 1; }
  echo "$1: the ledger is the same"
}
expect() { grep -q -- "$2" "$1.out" || { echo "$1: no '$2'" && cat "$1.out" && exit 1; }; }

# One rank is lost: the step ends, the script requeues.
submit lost --nodes=3
wait_until 60 steps lost 70
pkill -KILL -n -f "^$program $work/deck.ini run.name=lost" || true
wait_until 300 finished lost
expect lost 'requeued'
same lost

# One rank is stopped: the watchdog of another node ends the step, the script requeues.
submit stopped --nodes=2
wait_until 60 steps stopped 70
pkill -STOP -n -f "^$program $work/deck.ini run.name=stopped" || true
wait_until 300 finished stopped
expect stopped 'is lost: no sign of life'
expect stopped 'exit code 76, requeued'
expect stopped 'resumed '
same stopped

# A signal to the ranks; the script requeues; the job comes back by itself.
submit signalled --nodes=2
wait_until 60 steps signalled 20
scancel --signal=USR1 "$job"
wait_until 300 finished signalled
expect signalled 'stopped by SIGUSR1'
expect signalled 'exit code 75, requeued'
expect signalled 'resumed '
same signalled

# What a preempting or failing cluster does: the job is killed and queued again, on another number of nodes.
submit requeued --nodes=2
wait_until 60 steps requeued 70
scontrol requeue "$job"
scontrol update JobId="$job" NumNodes=3 2>/dev/null || true
wait_until 300 finished requeued
expect requeued 'resumed '
same requeued

# By hand, on 1, 3 and 2 nodes.
for n in 1 3 2; do
  (sleep 1.5 && mkdir -p runs/moved && touch runs/moved/STOP) &
  code=0
  srun --nodes="$n" --ntasks-per-node=1 --kill-on-bad-exit=1 "$program" deck.ini run.name=moved >>moved.out 2>&1 || code=$?
  wait
  [[ $code == 75 || $code == 0 ]] || { cat moved.out && exit 1; }
done
rm -f runs/moved/STOP
srun --nodes=2 --ntasks-per-node=2 "$program" deck.ini run.name=moved >>moved.out 2>&1
same moved
