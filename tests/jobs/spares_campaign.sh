#!/usr/bin/env bash
# spares_campaign.sh ROOT LLMTRAIN FAULT_LIBRARY [CASE...]: losses of nodes on a real Slurm, in every phase of a run. Each
# job has 4 nodes, of which 3 train (SPARE_NODES=1). A node is lost; the time from there to the next training step is
# measured, and the ledger compared with that of one process to which nothing happened.
#
# For root, on a cluster of this machine whose nodes n1 to n4 are the network namespaces lslurm-n1 to lslurm-n4 (or
# PREFIX-n1 to PREFIX-n4), which has to be brought up again afterwards. Exit code 77 elsewhere, and where other jobs use
# the cluster.
#
# Ways to lose a node: crash, all its processes are killed, slurmd too; stop, they are stopped, as on a host that hangs;
# daemon, slurmd is killed and the ranks live; cut, its cable is cut; rank, one rank is stopped. replay.bit, for which
# FAULTY names the program with injected numerical faults: it computes wrongly, until a replay names and excludes it.
set -euo pipefail
root=$1 program=$2 fault_library=$3
shift 3
cases=(start.crash start.stop step.crash step.stop checkpoint.crash checkpoint.stop evaluation.crash evaluation.stop
  rollout.crash rollout.stop)
more=(step.daemon step.cut step.rank spare.crash shrink.crash first.crash)
[[ -z ${FAULTY:-} ]] || more+=(replay.bit)
if [[ $* == all ]]; then
  cases+=("${more[@]}")
elif [[ $# != 0 ]]; then
  cases=("$@")
fi
prefix=${PREFIX:-lslurm}
if [[ $(id -u) != 0 || ! -e /run/netns/$prefix-n4 ]] || ! timeout 20 sinfo --noheader >/dev/null 2>&1; then
  echo "no local Slurm of 4 nodes that are network namespaces" && exit 77
fi
[[ -z $(squeue --noheader) ]] || { echo "the cluster has other jobs" && exit 77; }

work=$(mktemp -d)
declare -A holder=()  # a process that keeps the namespaces of each node
declare -A revived=() # nodes whose slurmd the cluster does not know
clean_up() {
  [[ ! -s $work/submitted ]] || xargs scancel --quiet <"$work/submitted" 2>/dev/null || true
  for node in "${!holder[@]}"; do
    settled "$node" || revive "$node" || true
    kill "${holder[$node]}"
  done
  for node in "${!revived[@]}"; do of_program "$node" slurmd | signal KILL; done
  rm -rf "$work"
}

# ---- nodes -----------------------------------------------------------------------------------------------------------

processes() { ip netns pids "$prefix-$1" | grep -vxF "${holder[$1]:-none}" || true; }
of_program() { # of_program NODE NAME: its processes
  local pid
  for pid in $(processes "$1"); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) != "$2" ]] || echo "$pid"
  done
}
hold() {
  nsenter --target "$(of_program "$1" slurmd | head -n 1)" --net --uts --mount setsid sleep infinity </dev/null >/dev/null 2>&1 &
  holder[$1]=$!
}
signal() { xargs --no-run-if-empty kill "-$1" 2>/dev/null || true; } # some processes may end by themselves
lose() { # lose HOW NODE
  case $1 in
    crash) processes "$2" | signal KILL ;;
    stop) processes "$2" | signal STOP ;;
    daemon) of_program "$2" slurmd | signal KILL ;;
    cut) ip -n "$prefix-$2" link set eth0 down ;;
    rank) of_program "$2" llmtrain | signal STOP ;;
  esac
}
# A node is free when it is idle, or when processors of it are booked though it has no job: Slurm 24.11 may go on to book
# those of a job that gave nodes back.
free() {
  case $(sinfo --noheader --nodes="$1" --format=%t) in
    idle) ;;
    mix | alloc) [[ -z $(squeue --noheader --nodelist="$1") ]] ;;
    *) return 1 ;;
  esac
}
settled() { # a node may still be busy with the end of its job
  local i
  for ((i = 0; i < 20; ++i)); do
    ! free "$1" || return 0
    sleep 1
  done
  return 1
}
revive() {
  local node=$1 i
  revived[$node]=yes
  ip -n "$prefix-$node" link set eth0 up
  processes "$node" | signal KILL
  for ((i = 0; i < 30; ++i)); do
    # A node that is set down forgets what it was still to complete, which may be booked after its job has ended.
    ((i % 5 != 0)) || scontrol update nodename="$node" state=down reason=test
    if [[ -z $(of_program "$node" slurmd) ]]; then # its port may not be free yet
      nsenter --target "${holder[$node]}" --net --uts --mount setsid slurmd -D -N "$node" -f "$SLURM_CONF" \
        </dev/null >/dev/null 2>&1 &
    fi
    sleep 2
    ! free "$node" || return 0
    scontrol update nodename="$node" state=resume >/dev/null 2>&1 || true
  done
  echo "$node does not come back: $(sinfo --noheader --nodes="$node" --format="%N %t %E")" && return 1
}

# ---- runs ------------------------------------------------------------------------------------------------------------

cd "$work"
for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
for ((i = 0; i < 3000; ++i)); do echo "Line $((i * i % 71)) has some words to judge by."; done >long.txt
for ((i = 0; i < 64; ++i)); do echo "{\"prompt\": \"Line $((i * i % 71)) has\"}"; done >prompts.jsonl
cat >train.ini <<END
[run]
max_steps = 120
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
[precision]
compute = fp32
[evaluation]
every_steps = 50
[checkpoint]
every_steps = 20
export = last
END
sed "/^train =/a validation = $work/long.txt" train.ini >evaluation.ini
{ cat train.ini && printf '%s\n' '[watchdog]' 'replay_every_steps = 10'; } >replay.ini
cat >rollout.ini <<END
[run]
task = grpo
max_steps = 200
output = $work/runs
[model]
path = $work/runs/whole-train/export
[data]
train = $work/prompts.jsonl
[rollout]
max_new_tokens = 10
[rewards]
functions = regex:words
[grpo]
group_size = 4
[batch]
sequence_length = 16
micro = 4
global = 240
[precision]
compute = fp32
[checkpoint]
every_steps = 20
END
# The runs are slowed down, so that there is time for events: steps by SLOW milliseconds, or files of checkpoints.
cat >llmtrain <<END
#!/usr/bin/env bash
if [[ \${*: -1} != --check && -n \${SLOW:-} ]]; then
  export LD_PRELOAD=$fault_library LLMTRAIN_FAULT_CALLS=write LLMTRAIN_FAULT_PATH=\$SLOW LLMTRAIN_FAULT_HOW=slow \\
    LLMTRAIN_FAULT_AT=1 LLMTRAIN_FAULT_MS=\${SLOW_MS:-100}
fi
if [[ -n \${WRONG_NODE:-} ]]; then
  [[ \${SLURMD_NODENAME:-} != "\$WRONG_NODE" ]] || export LLMTRAIN_TEST_FAULTS='bit gradient 33 -1 12345'
  exec ${FAULTY:-} "\$@"
fi
exec $program "\$@"
END
chmod +x llmtrain
export LLMTRAIN=$work/llmtrain OMP_NUM_THREADS=1

submit() { # submit NAME DECK NAME=value...
  local name=$1 deck=$2
  shift 2
  env SPARE_NODES=1 "$@" sbatch --parsable --export=ALL --nodes=4 --ntasks-per-node=1 --cpus-per-task=1 --time=20 \
    --output="$work/$name.out" "$root/jobs/train.sbatch" "$work/$deck.ini" "run.name=$name" >number
  cat number >>submitted
}
wait_until() { # wait_until SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || { echo "waited in vain: $*" && squeue && cat "$name.out" && exit 1; }
    sleep 0.2
  done
}
lines() { { cat "runs/$1/ledger.jsonl" 2>/dev/null || true; } | grep -c learning_rate || true; }
steps() { (($(lines "$1") >= $2)); }
running() { [[ -n $(of_program "$1" llmtrain) ]]; }
saving() { compgen -G "runs/$1/checkpoints/.attempt-*" >/dev/null; }
section() { grep -qs "\"section\":\"$2\"" "runs/$1"/status/rank-*; }
state_is() { [[ $(squeue --noheader --jobs="$(cat number)" --format=%T) == "$1" ]]; }
starts() { { cat "$name.out" 2>/dev/null || true; } | grep -c '^llmtrain 0' || true; }
started() { (($(starts) > $1)); }
# The first step of the next start, which has cut the ledger back to its checkpoint. Prints the time since BEGIN.
await_step() { # await_step STARTS BEGIN
  wait_until 200 started "$1"
  wait_until 60 steps "$name" $(($(lines "$name") + 1))
  echo "$name: $(($(date +%s) - $2)) s to the next step"
}

run_case() { # run_case PHASE.HOW
  local phase=${1%.*} how=${1#*.} node=n2 begin before deck=train slow=ledger.jsonl
  name=${1/./-}
  case $phase in
    evaluation | rollout | replay) deck=$phase ;;
    checkpoint) slow=checkpoints ;;
    first) node=n1 ;;
    spare) node=n4 ;;
  esac
  # Slurm notices a dead slurmd, and a dead spare, after half a minute.
  [[ $how != daemon && $phase != spare ]] || export SLOW_MS=500
  if [[ $phase == shrink ]]; then
    submit "$name" "$deck" SLOW="$slow" WITHOUT_SPARES=shrink
  elif [[ $phase == replay ]]; then
    submit "$name" "$deck" SLOW="$slow" WRONG_NODE="$node"
  else
    submit "$name" "$deck" SLOW="$slow"
  fi
  unset SLOW_MS
  case $phase in
    start) wait_until 60 running "$node" ;;
    evaluation) wait_until 120 steps "$name" 50 && sleep 0.3 ;;
    rollout) wait_until 120 steps "$name" 6 && wait_until 60 section "$name" sampling ;;
    checkpoint) wait_until 120 steps "$name" 25 && wait_until 60 saving "$name" ;;
    replay) wait_until 120 test -s "runs/$name/excluded_nodes" ;;
    *) wait_until 120 steps "$name" 30 ;;
  esac
  before=$(starts)
  echo "$name: $node is lost after step $(lines "$name")$([[ -e runs/$name/status ]] || echo ', while the run starts')$(
    ! saving "$name" || echo ', in a save')"
  begin=$(date +%s)
  lose "$how" "$node"
  if [[ $phase == first ]]; then
    wait_until 200 state_is PENDING
    revive n1
  fi
  [[ $phase == spare ]] || await_step "$before" "$begin"
  if [[ $phase == shrink ]]; then
    wait_until 60 steps "$name" 45
    before=$(starts) begin=$(date +%s)
    lose stop n3
    await_step "$before" "$begin"
  fi
  wait_until 300 test -e "runs/$name/finished.json"
  sed -n "s/^train.sbatch/$name: &/p" "$name.out"
  sed -n 's/^{"resumed_from_step".*"restart":/metrics.jsonl: /p' "runs/$name/metrics.jsonl"
  cmp "runs/$name/ledger.jsonl" "runs/whole-${deck/replay/train}/ledger.jsonl" || { cat "$name.out" && exit 1; }
  echo "$name: the ledger is the same"
  wait_until 60 state_is ''
  [[ $phase == first ]] || revive "$node"
  [[ $phase != shrink ]] || revive n3
}

for deck in train evaluation rollout; do "$program" $deck.ini run.name=whole-$deck >whole-$deck.txt; done
trap clean_up EXIT
trap 'exit 143' TERM INT
for node in n1 n2 n3 n4; do hold "$node"; done
sleep 1
for which in "${cases[@]}"; do run_case "$which"; done
echo "${#cases[@]} cases passed"
