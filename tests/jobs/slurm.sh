#!/usr/bin/env bash
# slurm.sh ROOT LLMTRAIN: jobs/ on a real Slurm with at least 3 nodes: a lost rank, a lost node's step, a stopped rank, a
# node that goes down, USR1, a time limit, preemption, `scontrol requeue`, other node counts, and a fault at every start;
# every ledger is that of a run of one process to which nothing happened. LLMTRAIN_SLURM_CASES names some of the cases.
# Exit code 77 where there is no cluster. Preemption needs partitions `low`, which `urgent` preempts by requeueing; a node
# that goes down needs an operator of the cluster.
set -euo pipefail
root=$1 program=$2
nodes=$(sinfo --noheader --format=%D 2>/dev/null | head -n 1) || nodes=0
[[ ${nodes:-0} -ge 3 ]] || { echo "no Slurm with 3 nodes here" && exit 77; }
work=$(mktemp -d)
jobs=() down_node=
clean_up() {
  scancel --quiet "${jobs[@]:-}" 2>/dev/null || true
  if [[ -n $down_node ]]; then scontrol update nodename="$down_node" state=resume 2>/dev/null || true; fi
  rm -rf "$work"
}
trap clean_up EXIT
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
case_lost() {
  submit lost --nodes=3
  wait_until 60 steps lost 70
  pkill -KILL -n -f "^$program $work/deck.ini run.name=lost" || true
  wait_until 300 finished lost
  expect lost 'requeued'
  same lost
}

# All that one of two nodes runs of the step is gone.
case_cut() {
  local process
  submit cut --nodes=2 --ntasks-per-node=2
  wait_until 60 steps cut 70
  for process in $(pgrep -f "^$program $work/deck.ini run.name=cut"); do
    if tr '\0' '\n' <"/proc/$process/environ" | grep -qx SLURM_NODEID=1; then kill -KILL "$process"; fi
  done
  wait_until 300 finished cut
  expect cut 'requeued'
  expect cut 'resumed '
  same cut
}

# A node is taken out of service: Slurm kills the job and queues it again, for other nodes.
case_down() {
  local node
  submit down --nodes=2
  wait_until 60 steps down 70
  node=$(scontrol show hostnames "$(squeue --noheader --jobs="$job" --format=%N)" | tail -n 1)
  scontrol update nodename="$node" state=down reason=test 2>/dev/null || { echo "left out: a node down" && return; }
  down_node=$node
  wait_until 300 finished down
  scontrol update nodename="$node" state=resume 2>/dev/null || true # or it came back by itself
  down_node=
  expect down 'resumed '
  same down
}

# One rank is stopped: the watchdog of another node ends the step, the script requeues.
case_stopped() {
  submit stopped --nodes=2
  wait_until 60 steps stopped 70
  pkill -STOP -n -f "^$program $work/deck.ini run.name=stopped" || true
  wait_until 300 finished stopped
  expect stopped 'is lost: no sign of life'
  expect stopped 'exit code 76, requeued'
  expect stopped 'resumed '
  same stopped
}

# A signal to the ranks; the script requeues; the job comes back by itself.
case_signalled() {
  submit signalled --nodes=2
  wait_until 60 steps signalled 20
  scancel --signal=USR1 "$job"
  wait_until 300 finished signalled
  expect signalled 'stopped by SIGUSR1'
  expect signalled 'exit code 75, requeued'
  expect signalled 'resumed '
  same signalled
}

# An allocation of one minute, of which the start takes half: the run ends before it does, and goes on in another one.
case_limited() {
  cat >slow_start <<END
#!/usr/bin/env bash
if [[ -n \${SLURM_STEP_ID:-} && \${SLURM_RESTART_COUNT:-0} == 0 ]]; then sleep 30; fi
exec "$program" "\$@"
END
  chmod +x slow_start
  LLMTRAIN=$work/slow_start submit limited --nodes=2 --time=1 --signal=B:URG@1
  wait_until 200 grep -qs 'exit code 75, requeued' limited.out
  expect limited 'stopped by the time limit'
  scancel "$job"
  srun --nodes=3 --ntasks-per-node=1 "$program" deck.ini run.name=limited >>limited.out 2>&1
  same limited
}

# A more urgent job takes the nodes.
case_preempted() {
  if ! scontrol show partition urgent 2>/dev/null | grep -q PriorityTier || ! scontrol show partition low >/dev/null 2>&1; then
    echo "left out: preemption (no partitions low and urgent)"
    return
  fi
  submit preempted --nodes=3 --partition=low
  wait_until 60 steps preempted 70
  srun --partition=urgent --nodes=3 --ntasks-per-node=1 --exclusive sleep 2
  wait_until 300 finished preempted
  expect preempted 'resumed '
  same preempted
}

# What a failing cluster does: the job is killed and queued again, on another number of nodes.
case_requeued() {
  submit requeued --nodes=2
  wait_until 60 steps requeued 70
  scontrol requeue "$job"
  scontrol update JobId="$job" NumNodes=3 2>/dev/null || true
  wait_until 300 finished requeued
  expect requeued 'resumed '
  same requeued
}

# A fault in every life: after the limit of restarts without a new checkpoint the script gives up.
case_hopeless() {
  cat >dies <<END
#!/usr/bin/env bash
if [[ -z \${SLURM_STEP_ID:-} ]]; then exec "$program" "\$@"; fi
exec timeout --signal=KILL 5 "$program" "\$@" run.max_steps=1000000 checkpoint.every_steps=1000000
END
  chmod +x dies
  LLMTRAIN=$work/dies MOST_RESTARTS=2 submit hopeless --nodes=2
  wait_until 300 grep -qs 'restarts without a new checkpoint: not requeued' hopeless.out
  [[ $(grep -c 'requeued$' hopeless.out) == 2 ]] || { cat hopeless.out && exit 1; }
  sleep 3
  [[ -z $(squeue --noheader --jobs="$job" --states=PENDING,RUNNING) ]] || { squeue && exit 1; }
  echo "hopeless: given up after two restarts"
}

# By hand, on 1, 3 and 2 nodes.
case_moved() {
  local n code
  for n in 1 3 2; do
    (sleep 1.5 && mkdir -p runs/moved && touch runs/moved/STOP) &
    code=0
    srun --nodes="$n" --ntasks-per-node=1 --kill-on-bad-exit=1 "$program" deck.ini run.name=moved >>moved.out 2>&1 ||
      code=$?
    wait
    [[ $code == 75 || $code == 0 ]] || { cat moved.out && exit 1; }
  done
  rm -f runs/moved/STOP
  srun --nodes=2 --ntasks-per-node=2 "$program" deck.ini run.name=moved >>moved.out 2>&1
  same moved
}

# limited, down and preempted (minutes each, and an operator's rights) only where they are named.
for name in ${LLMTRAIN_SLURM_CASES:-lost cut stopped signalled requeued hopeless moved}; do "case_$name"; done
