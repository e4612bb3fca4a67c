#!/usr/bin/env bash
# slurm.sh ROOT BUILD LLMTRAIN FAULT_LIBRARY: jobs/ on a real Slurm of at least 3 nodes. Every case disturbs a run,
# which then resumes by itself or by the same command, and compares its ledger with that of an undisturbed run of one
# process. Exit code 77 if there is no cluster.
#
#   LLMTRAIN_SLURM_CASES        names of cases, or `all`; by default those that take a minute or two
#   LLMTRAIN_SLURM_ENVIRONMENT  shell text that gives access to the cluster, e.g. "export SLURM_CONF=..."
#
# `preempted` and `graceful` need the partitions of partitions.conf; `down` and `cut` an operator of the cluster, `cut`
# a local one whose nodes are network namespaces.
set -euo pipefail
root=$1 build=$2 program=$3 fault_library=$4
eval "${LLMTRAIN_SLURM_ENVIRONMENT:-}"
nodes=$(timeout 20 sinfo --noheader --Node --format=%N 2>/dev/null | sort -u | wc -l) || nodes=0
[[ $nodes -ge 3 ]] || { echo "no Slurm with 3 nodes here" && exit 77; }
usual=(signalled lost requeued stopped moved hopeless)
alone=(preempted graceful down cut medium) # these need all nodes or remove some
others=(node limited timed cancelled array chain interactive installed)

work=$(mktemp -d)
clean_up() {
  if [[ -s $work/submitted ]]; then xargs scancel --quiet <"$work/submitted" 2>/dev/null || true; fi
  if [[ -s $work/down ]]; then restore_node "$(cat "$work/down")"; fi
  jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
  rm -rf "$work"
}
restore_node() {
  ip -n "lslurm-$1" link set eth0 up 2>/dev/null || true
  scontrol update nodename="$1" state=resume 2>/dev/null || true
  rm -f "$work/down"
}
trap clean_up EXIT
trap 'exit 143' TERM INT
cd "$work"

for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 400
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
every_steps = 20
[watchdog]
lost_after = 15s
END
# Command of the jobs. On an idle machine 400 steps take no time: with a file slow.RUN every step takes at least this
# many milliseconds, so that events happen during a run.
cat >llmtrain <<END
#!/usr/bin/env bash
name=
for argument in "\$@"; do if [[ \$argument == run.name=* ]]; then name=\${argument#*=}; fi; done
if [[ -r $work/slow.\$name ]]; then
  export LD_PRELOAD=$fault_library LLMTRAIN_FAULT_CALLS=write LLMTRAIN_FAULT_PATH=ledger.jsonl LLMTRAIN_FAULT_HOW=slow \\
    LLMTRAIN_FAULT_AT=1 LLMTRAIN_FAULT_MS=\$(cat "$work/slow.\$name")
fi
exec $program "\$@"
END
chmod +x llmtrain
export LLMTRAIN=$work/llmtrain OMP_NUM_THREADS=1 SLURM_PMIX_FENCE=ring
"$program" deck.ini run.name=whole >whole.txt

slow() { echo "${2:-100}" >"slow.$1"; } # slow RUN [MILLISECONDS]
fast() { rm "slow.$1"; }
submit() { # submit NAME SBATCH_OPTION...: sets job
  local name=$1
  shift
  job=$(sbatch --parsable --export=ALL --ntasks-per-node=1 --cpus-per-task=1 --output="$work/$name.out" --time=10 "$@" \
    "$root/jobs/train.sbatch" "$work/deck.ini" "run.name=$name")
  echo "$job" >>submitted
}
by_hand() { # by_hand NAME SRUN_OPTION...
  local name=$1
  shift
  timeout 200 srun --ntasks-per-node=1 --kill-on-bad-exit=1 "$@" "$LLMTRAIN" deck.ini "run.name=$name" >>"$name.out" 2>&1
}
wait_until() { # wait_until SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { echo "waited in vain: $*" && squeue && tail -n 20 ./*.out && exit 1; }
    sleep 0.3
  done
}
steps() { [[ -e runs/$1/ledger.jsonl && $(wc -l <"runs/$1/ledger.jsonl") -ge $2 ]]; }
begun() { wait_until 90 steps "$1" 30; } # after the first checkpoint
finished() { [[ -e runs/$1/finished.json ]]; }
state_is() { [[ $(scontrol show job "$job" | sed -n 's/ *JobState=\([A-Z_]*\).*/\1/p') == "$1" ]]; }
expect() { grep -q -- "$2" "$1.out" || { echo "$1: no '$2'" && cat "$1.out" && exit 1; }; }
expect_nodes() { # expect_nodes NAME COUNT...: number of nodes of each start
  local seen
  seen=$(sed -n 's/^ranks .* on \([0-9]*\) nodes\{0,1\}\( .*\)*$/\1/p' "$1.out" | tr '\n' ' ')
  [[ $seen == "$2 " ]] || { echo "$1: on $seen nodes, not $2" && cat "$1.out" && exit 1; }
}
same() { # same NAME UNDISTURBED_RUN
  cmp "runs/$1/ledger.jsonl" "runs/${2:-whole}/ledger.jsonl" || { tail -n 100 "$1.out" && exit 1; }
  echo "$1: the ledger is the same"
}
goes_on() { # goes_on NAME: its job resumes by itself, from a checkpoint, to the end
  wait_until 200 finished "$1"
  expect "$1" 'resumed '
  same "$1"
}
process_of() { # process_of NAME RANK
  cat "runs/$1"/status/rank-* | sed -n "s/^{\"rank\":$2,.*\"pid\":\([0-9]*\).*/\1/p"
}

# ---- ranks and nodes that are lost -----------------------------------------------------------------------------------

# One rank is killed: the step ends, the script requeues.
case_lost() {
  slow lost
  submit lost --nodes=3
  begun lost
  fast lost
  kill -KILL "$(process_of lost 1)"
  goes_on lost
  expect lost 'requeued$'
}

# All processes of the step on one of two nodes are killed.
case_node() {
  slow node
  submit node --nodes=2 --ntasks-per-node=2
  begun node
  fast node
  kill -KILL "$(process_of node 2)" "$(process_of node 3)"
  goes_on node
  expect node 'requeued$'
}

# One rank is stopped: the watchdog of another node ends the step, the script requeues.
case_stopped() {
  slow stopped
  submit stopped --nodes=2
  begun stopped
  fast stopped
  kill -STOP "$(process_of stopped 1)"
  goes_on stopped
  expect stopped 'rank 1 is lost: no heartbeat'
  expect stopped 'exit code 76, requeued'
}

# A node is taken out of service: Slurm kills the job and requeues it, for other nodes.
last_node() { scontrol show hostnames "$(squeue --noheader --jobs="$job" --format=%N)" | tail -n 1; }
expect_requeued_by_slurm() {
  scontrol show job "$job" | grep -q ' Restarts=1 ' || { scontrol show job "$job" && exit 1; }
}
idle() { [[ $(sinfo --noheader --nodes="$1" --format=%T | head -n 1) == idle ]]; }
case_down() {
  local node
  slow down
  submit down --nodes=2
  begun down
  fast down
  node=$(last_node)
  echo "$node" >down
  scontrol update nodename="$node" state=down reason=test
  goes_on down
  expect_requeued_by_slurm
  restore_node "$node"
  wait_until 90 idle "$node"
}

# The cable of a node is cut: Slurm detects it after a minute.
case_cut() {
  local node
  slow cut
  submit cut --nodes=2
  begun cut
  fast cut
  node=$(last_node)
  echo "$node" >down
  ip -n "lslurm-$node" link set eth0 down
  goes_on cut
  expect_requeued_by_slurm
  restore_node "$node"
  wait_until 90 idle "$node"
}

# A fault after every start: the script gives up after the maximum of restarts without a new checkpoint.
case_hopeless() {
  cat >dies <<END
#!/usr/bin/env bash
if [[ \${*: -1} == --check ]]; then exec $program "\$@"; fi
exec timeout --signal=KILL 4 $program "\$@" run.max_steps=1000000 checkpoint.every_steps=1000000
END
  chmod +x dies
  LLMTRAIN=$work/dies MOST_RESTARTS=2 submit hopeless --nodes=2
  wait_until 250 grep -qs '2 restarts without a new checkpoint: not requeued' hopeless.out
  [[ $(grep -c '^train.sbatch: .*requeued$' hopeless.out) == 2 ]] || { cat hopeless.out && exit 1; }
  wait_until 30 state_is FAILED
  echo "hopeless: given up after two restarts"
}

# ---- requests to stop ------------------------------------------------------------------------------------------------

# A signal to the ranks; the script requeues; the job resumes by itself.
case_signalled() {
  slow signalled
  submit signalled --nodes=2
  begun signalled
  fast signalled
  scancel --signal=USR1 "$job"
  goes_on signalled
  expect signalled 'stopped by SIGUSR1'
  expect signalled 'exit code 75, requeued'
}

# Slurm sends USR1 before the time is up, to a run that does not know its limit.
case_limited() {
  slow limited 1000
  sed '/^max_steps/a time_limit = none' deck.ini >limited.ini
  job=$(sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --output=limited.out --time=1 --signal=USR1@20 \
    "$root/jobs/train.sbatch" limited.ini run.name=limited)
  echo "$job" >>submitted
  wait_until 150 grep -qs 'exit code 75, requeued' limited.out
  fast limited
  goes_on limited
  expect limited 'stopped by SIGUSR1'
}

# Slurm sends nothing; the run queries its limit, and ends before.
case_timed() {
  slow timed 1000
  submit timed --nodes=2 --time=1 --signal=B:URG@1
  wait_until 150 grep -qs 'exit code 75, requeued' timed.out
  fast timed
  goes_on timed
  expect timed 'stopped by the time limit'
}

# `scancel` is final, but leaves the ranks time to save; the same command resumes.
case_cancelled() {
  slow cancelled
  submit cancelled --nodes=2
  begun cancelled
  fast cancelled
  scancel "$job"
  wait_until 60 state_is CANCELLED
  expect cancelled 'stopped by SIGTERM'
  sleep 3
  [[ -z $(squeue --noheader --jobs="$job" --states=PENDING,RUNNING) ]] || { squeue && exit 1; }
  submit cancelled --nodes=3 --open-mode=append
  goes_on cancelled
}

# As on a failing cluster: the job is killed and requeued; it resumes on a different number of nodes.
case_requeued() {
  slow requeued
  submit requeued --nodes=2
  begun requeued
  fast requeued
  scontrol requeuehold "$job"
  wait_until 60 scontrol update JobId="$job" NumNodes=3 NumTasks=3
  scontrol release "$job"
  goes_on requeued
  expect_nodes requeued '2 3'
}

# A more urgent job takes the nodes, at once or after a grace period, in which the run saves and requeues itself.
preempt() { # preempt NAME PARTITION
  slow "$1"
  submit "$1" --nodes=3 --partition="$2"
  begun "$1"
  fast "$1"
  timeout 200 srun --partition=urgent --nodes=3 --ntasks-per-node=1 --exclusive sleep 2
  goes_on "$1"
}
case_preempted() { preempt preempted low; }
case_graceful() {
  preempt graceful graceful
  expect graceful 'stopped by SIGTERM'
  expect graceful 'exit code 75, requeued'
}

# ---- other ways to run -----------------------------------------------------------------------------------------------

# By hand, on 1, 3 and 2 nodes, then two ranks per node.
case_moved() {
  local n step code lines=0
  for n in 1 3 2; do
    slow moved
    by_hand moved --nodes="$n" &
    step=$!
    wait_until 90 steps moved $((lines + 15))
    touch runs/moved/STOP
    code=0
    wait "$step" || code=$?
    [[ $code == 75 ]] || { cat moved.out && exit 1; }
    lines=$(wc -l <runs/moved/ledger.jsonl)
  done
  fast moved
  by_hand moved --nodes=2 --ntasks-per-node=2
  expect_nodes moved '1 3 2 2'
  same moved
}

# Two seeds as an array; one of them is signalled.
case_array() {
  local name
  slow deck-43
  job=$(sbatch --parsable --array=0-1 --nodes=1 --cpus-per-task=1 --output="$work/deck-%a.out" --time=10 \
    "$root/jobs/array.sbatch" deck.ini)
  echo "$job" >>submitted
  begun deck-43
  fast deck-43
  scancel --signal=USR1 "${job}_1"
  "$program" deck.ini run.name=seed run.seed=43 >seed.txt
  for name in deck-42 deck-43; do wait_until 200 finished "$name"; done
  mv deck-1.out deck-43.out
  expect deck-43 'resumed '
  same deck-42
  same deck-43 seed
}

# A chain of three jobs without requeueing: the first is signalled, the second ends the run, the third finds it
# finished.
case_chain() {
  slow chained
  OPTIONS="--nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --time=10 --output=$work/chained.out" \
    "$root/jobs/chain.sh" 3 deck.ini run.name=chained | sed 's/job //' >chain
  cat chain >>submitted
  begun chained
  fast chained
  scancel --signal=USR1 "$(head -n 1 chain)"
  goes_on chained
  expect chained 'not requeued (exit code 75)'
  job=$(tail -n 1 chain)
  wait_until 120 state_is COMPLETED
  job=$(head -n 1 chain)
  state_is FAILED || { scontrol show job "$job" && exit 1; }
}

# In the foreground, ended by Ctrl-C.
case_interactive() {
  local run=("$root/jobs/interactive.sh" deck.ini run.name=interactive) step code=0
  export NODES=2 TASKS=1 CORES=1 TIME=5
  slow interactive
  timeout 200 env --default-signal=INT "${run[@]}" >interactive.out 2>&1 &
  step=$!
  begun interactive
  fast interactive
  pkill -INT -P "$step"
  wait "$step" || code=$?
  [[ $code == 75 ]] || { echo "exit code $code" && cat interactive.out && exit 1; }
  timeout 200 "${run[@]}" >>interactive.out 2>&1
  expect interactive 'stopped by SIGINT'
  expect interactive 'resumed '
  same interactive
}

# The user's installation: the result of `cmake --install`, found through the module file.
case_installed() {
  cmake --install "$build" --prefix "$work/prefix" >install.txt
  unset LLMTRAIN
  if [[ -r /usr/share/modules/init/bash ]]; then
    set +u # Modules fails with it
    # shellcheck source=/dev/null
    source /usr/share/modules/init/bash
    module use prefix/share/llmtrain/modules/tcl
    module load llmtrain
    set -u
  else
    echo "left out: module load (no Environment Modules here)"
    export PATH=$work/prefix/bin:$PATH LLMTRAIN_SHARE=$work/prefix/share/llmtrain
  fi
  job=$(sbatch --parsable --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --output=installed.out --time=10 \
    "$LLMTRAIN_SHARE/jobs/train.sbatch" deck.ini run.name=installed)
  echo "$job" >>submitted
  wait_until 120 finished installed
  same installed
}

# GPT-2 124M, a few steps of few tokens, on 2 nodes and then on 3.
case_medium() {
  local step code=0 run=("$LLMTRAIN" "$root/inputs/medium.ini" run.output="$work/runs" data.cache="$work/cache" run.max_steps=3
    batch.global=6 batch.sequence_length=32 precision.compute=fp32 evaluation.every_steps=0 evaluation.at_end=false
    model.max_seq_len=32 log.every_steps=1)
  slow medium 10000
  timeout 400 srun --nodes=2 --ntasks-per-node=1 "${run[@]}" run.name=medium >medium.out 2>&1 &
  step=$!
  wait_until 200 steps medium 1
  touch runs/medium/STOP
  wait "$step" || code=$?
  [[ $code == 75 ]] || { cat medium.out && exit 1; }
  fast medium
  timeout 400 srun --nodes=3 --ntasks-per-node=1 "${run[@]}" run.name=medium >>medium.out 2>&1
  expect_nodes medium '2 3'
  expect medium 'resumed '
  OMP_NUM_THREADS=2 "${run[@]}" run.name=medium-whole >medium-whole.txt
  same medium medium-whole
}

# ---- all of them -----------------------------------------------------------------------------------------------------

run_case() { # several at a time, since they mostly wait
  (
    set -e
    SECONDS=0
    "case_$1"
    echo "$1: $SECONDS s"
    touch "$1.passed"
  ) >"$1.log" 2>&1
}
read -ra cases <<<"${LLMTRAIN_SLURM_CASES:-${usual[*]}}"
if [[ ${cases[*]} == all ]]; then cases=("${usual[@]}" "${others[@]}" "${alone[@]}"); fi
for name in "${cases[@]}"; do
  declare -F "case_$name" >/dev/null || { echo "slurm.sh: no case '$name'" >&2 && exit 64; }
  if [[ " ${alone[*]} " == *" $name "* ]]; then
    wait
    run_case "$name" &
    wait
  else
    while (($(jobs -rp | wc -l) >= 3)); do wait -n || true; done
    run_case "$name" &
  fi
done
wait
status=0
for name in "${cases[@]}"; do
  [[ -e $name.passed ]] || { status=1 && echo "FAILED: $name"; }
  cat "$name.log"
done
((status == 0))
