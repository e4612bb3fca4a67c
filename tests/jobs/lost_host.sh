#!/usr/bin/env bash
# lost_host.sh LLMTRAIN: hosts vanish from a network of hosts (network_hosts.sh). The job names what is lost, no rank
# remains, and the same command resumes on three hosts, to the ledger of a run of one process. Exit code 77 where there
# are no such hosts.
set -euo pipefail
program=$(realpath "$1")
if [[ -z ${HOSTS_FOLDER:-} ]]; then
  HOSTS=5 SLOTS=2 exec "$(dirname "$(readlink -f "$0")")/network_hosts.sh" "$0" "$program"
fi
work=$HOSTS_FOLDER/work
mkdir "$work"
cd "$work"
for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 16
output = $work/runs
[model]
d_model = 64
n_layers = 2
n_heads = 2
dropout = 0.1
[data]
train = $work/text.txt
[batch]
sequence_length = 16
global = 8
[parallel]
reduction = tree
[evaluation]
every_steps = 11
[precision]
compute = fp32
[checkpoint]
every_steps = 5
[watchdog]
lost_after = 5s
END
"$program" deck.ini run.name=whole >whole.txt

fail() {
  echo "lost_host.sh: $*"
  tail -n 60 ./*.out
  exit 1
}
wait_for() { # wait_for SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do ((SECONDS < end)) || fail "waited in vain: $*" && sleep 0.1; done
}
steps() { [[ -e runs/$1/ledger.jsonl && $(wc -l <"runs/$1/ledger.jsonl") -ge $2 ]]; }
begun() { steps "$1" 7 && [[ -e runs/$1/checkpoints/step-00000005/manifest.json ]]; }
no_rank() { ! pgrep -x "$(basename "$program")" >ranks; }
printed() { grep -Eaq -- "$2" "$1.out"; } # what ranks print takes its time through the network
expect() { printed "$1" "$2" || fail "$1: no '$2'"; }
# start NAME HOST...: sets job
start() {
  local name=$1 list
  shift
  list=$(printf '%s:2,' "$@")
  mpirun -n $((2 * $#)) --host "${list%,}" "$program" deck.ini "run.name=$name" >>"$name.out" 2>&1 &
  job=$!
}

# lose NAME HOST SECONDS MESSAGE COMMAND...: the command takes the host from a run on four of them; no rank may be left
# after so many seconds, and the message is printed. mpirun itself is not waited for: with a host that says nothing any
# more it waits as long as TCP does, and its exit code is then 0 (Open MPI 5.0.7).
lose() {
  local name=$1 lost=$2 seconds=$3 message=$4 began
  shift 4
  rate 10 # a step takes half a second
  start "$name" h1 h2 h3 "$lost"
  wait_for 60 begun "$name"
  began=$SECONDS
  "$@"
  wait_for "$seconds" no_rank
  echo "$name: all ranks have ended $((SECONDS - began)) s after the loss of $lost"
  wait_for 10 printed "$name" "$message"
  [[ ! -e runs/$name/finished.json ]] || fail "$name: the run has finished"
  kill -KILL "$job" 2>>killed.txt || true
  wait "$job" 2>>killed.txt || true
  rate 10000
}
resume() {
  start "$1" h1 h2 h3
  wait "$job" || fail "$1: exit code $?"
  expect "$1" 'resumed '
  cmp "runs/$1/ledger.jsonl" runs/whole/ledger.jsonl || fail "$1: the ledger differs"
  echo "$1: resumed on three hosts, the ledger is the same"
}

# All processes of a host are killed: their connections close, and mpirun names the host.
lose crash h4 15 'Remote daemon.* on node h4|llmtrain: .*h4' crash h4
resume crash

# A host without power says nothing: the watchdog of another one names its ranks.
lose power h5 20 '^llmtrain: ranks 6, 7 are lost: no heartbeat for 5 s' power_off h5
expect power '^  rank 6 on h5, .* <==$'
expect power '^  rank 7 on h5, .* <==$'
[[ $(grep -ac ' <==$' power.out) == 2 ]] || fail "power: others are named, too"
[[ $(cat runs/power/status/end-*) == 76 ]] || fail "power: ended with $(cat runs/power/status/end-*), not with 76"
resume power
