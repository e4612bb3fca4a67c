#!/usr/bin/env bash
# Whole runs of the GPU program: their agreement with each other and with the host's program, and the ways they end.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: gpu_runs.sh PROGRAMS [--host PROGRAMS] [--mpirun COMMAND] [--work FOLDER] [CASE...]

PROGRAMS is a folder with llmtrain and llmtool for GPUs.

  --host PROGRAMS   the folder with the host's, for the case `exchange`
  --mpirun COMMAND  starts the number of ranks that follows it (mpirun --oversubscribe --bind-to none -n)
  --work FOLDER     for runs and logs, which stay (otherwise in a temporary folder, until the end)

Cases (all):
  ledgers       the same bytes on 1, 2 and 4 ranks, with zero from 0 to 3, once more, with CUDA graphs and without
  resume        a run that is cut off goes on, on another number of ranks, as if it had not been
  exchange      checkpoints of the host's program and back: the same bits, and steps go on from them
  offload       the same bytes wherever weights and optimizer lie
  too_large     a model that no GPU holds: one message and exit code 78
  signal        SIGTERM to one rank: a checkpoint and exit code 75, and the run goes on from it
  killed_rank   SIGKILL of one rank: the job ends, and goes on from its last checkpoint
  stopped_rank  SIGSTOP of one rank: the watchdog ends the job with 76

Ranks that are more than the GPUs share them. LLMTRAIN_FAULT_PATIENCE=10 makes all limits of time ten times as long.
Exit code 0: all that ran passed; 1: something failed; 77: there is no GPU, nothing ran.
TEXT
}

all_cases=(ledgers resume exchange offload too_large signal killed_rank stopped_rank)
gpu='' host='' mpirun='mpirun --oversubscribe --bind-to none -n' work='' cases=()
value() { # value OPTION VALUE...: checks that the option has a value
  [[ -n ${2:-} ]] || { echo "gpu_runs.sh: $1 needs a value (--help lists the options)" >&2 && exit 64; }
}
while (($# > 0)); do
  case $1 in
    --host) value "$@" && host=$(readlink -m "$2") && shift ;;
    --mpirun) value "$@" && mpirun=$2 && shift ;;
    --work) value "$@" && work=$2 && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) echo "gpu_runs.sh: unknown option '$1' (--help lists them)" >&2 && exit 64 ;;
    *) if [[ -z $gpu ]]; then gpu=$(readlink -m "$1"); else cases+=("$1"); fi ;;
  esac
  shift
done
[[ -n $gpu ]] || { usage >&2 && exit 64; }
[[ -x $gpu/llmtrain ]] || { echo "gpu_runs.sh: there is no program $gpu/llmtrain" >&2 && exit 66; }
((${#cases[@]} > 0)) || cases=("${all_cases[@]}")
for name in "${cases[@]}"; do
  [[ " ${all_cases[*]} " == *" $name "* ]] || { echo "gpu_runs.sh: no case '$name' (--help lists them)" >&2 && exit 64; }
done
read -ra mpirun <<<"$mpirun"
job_ends=$(dirname "$(readlink -f "$0")")/../parallel/job_ends.sh
patience=${LLMTRAIN_FAULT_PATIENCE:-1}

keep=true
if [[ -z $work ]]; then work=$(mktemp -d) keep=false; fi
export LLMTRAIN_GPU_RUNS=$$ # in the environment of all processes started here
clean_up() { # also ends jobs of a failed case
  unset LLMTRAIN_GPU_RUNS
  jobs -p | xargs --no-run-if-empty kill 2>/dev/null || true
  grep -lsz "^LLMTRAIN_GPU_RUNS=$$\$" /proc/[0-9]*/environ | sed 's/[^0-9]//g' |
    xargs --no-run-if-empty kill -KILL 2>/dev/null || true
  $keep || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 143' TERM INT
mkdir -p "$work/disk"
work=$(readlink -f "$work")
cd "$work"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PRTE_MCA_odls_base_sigkill_timeout=10 # time for the others' report when a rank is lost

# Samples of one length, a multiple of 64, and no attention dropout: passes are launched as graphs, and cuDNN's attention
# is used if it is installed.
for ((i = 0; i < 200; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 2
output = $work/runs
[model]
family = llama
d_model = 32
n_layers = 2
n_heads = 2
n_kv_heads = 1
[data]
train = $work/text.txt
cross_document_attention = true
[batch]
sequence_length = 64
global = 12
[parallel]
reduction_groups = 4
[precision]
compute = bf16
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
parameter_hash_every_steps = 1
END

code=0
timeout "$((300 * patience))" "$gpu/llmtrain" deck.ini run.name=device run.max_steps=1 >device.txt 2>&1 || code=$?
((code != 69)) || { echo "skipped: gpu_runs ($(head -n 1 device.txt))" && exit 77; } # the cases report other problems

fail() { echo "$*" && exit 1; }
skip() { echo "skipped: $*" && exit 77; }
job() { # job PROGRAM NAME RANKS SETTING...: sets command
  command=("$1" "$work/deck.ini" "run.name=$2" "${@:4}")
  (($3 == 1)) || command=("${mpirun[@]}" "$3" "${command[@]}")
}
train_with() { # train_with PROGRAM NAME RANKS SETTING...: runs to the end
  local command code=0
  job "$@"
  timeout --kill-after=5 "$((300 * patience))" "${command[@]}" >"$2.txt" 2>&1 || code=$?
  ((code == 0)) || { cat "$2.txt" && fail "$2: exit code $code"; }
}
train() { train_with "$gpu/llmtrain" "$@"; }
same() { # same RUN REFERENCE: expects equal ledgers
  cmp "runs/$1/ledger.jsonl" "runs/$2/ledger.jsonl" || { cat "$1.txt" && fail "$1: another ledger than $2"; }
  echo "$1: the ledger of $2"
}
control() { # control RUN OTHER: expects different ledgers
  ! cmp -s "runs/$1/ledger.jsonl" "runs/$2/ledger.jsonl" || fail "the control $1 has the ledger of $2"
}
several_ranks() { command -v "${mpirun[0]}" >/dev/null || skip "${mpirun[0]} is not here"; }
step_name() { printf 'step-%08d' "$1"; }
# cut_off FROM TO STEP: copies a run as a job leaves it that is killed before it publishes a later checkpoint
cut_off() {
  local path
  cp -r "runs/$1" "runs/$2"
  rm -f "runs/$2/finished.json"
  for path in "runs/$2/checkpoints"/step-*; do
    [[ ! ${path##*/} > $(step_name "$3") ]] || rm -r "$path"
  done
}

has_graphs() { # has_graphs RUN
  grep '^graphs .* recorded; .* passes ran as graphs' "$1.txt" || { cat "$1.txt" && fail "$1: no pass was launched as a graph"; }
}
case_ledgers() {
  local ranks zero
  train one 1
  train again 1
  same again one
  train seed 1 run.seed=43
  control seed one
  train plain 1 parallel.cuda_graphs=false
  same plain one
  has_graphs one
  ! grep -q '^graphs .* recorded;' plain.txt || fail "cuda_graphs = false has graphs"
  LLMTRAIN_NCCL=always train nccl 1
  same nccl one
  train dropped 1 model.dropout=0.1
  has_graphs dropped
  control dropped one
  train dropped_plain 1 model.dropout=0.1 parallel.cuda_graphs=false
  same dropped_plain dropped
  for zero in 0 2 3; do
    train "one_$zero" 1 "parallel.zero=$zero"
    same "one_$zero" one
  done
  several_ranks
  for ranks in 2 4; do
    for zero in 0 1 2 3; do
      train "ranks${ranks}_$zero" "$ranks" "parallel.zero=$zero"
      same "ranks${ranks}_$zero" one
    done
    grep '^ranks ' "ranks${ranks}_3.txt"
    grep -h ' share GPU ' "ranks${ranks}_3.txt" || true
  done
  has_graphs ranks2_0
  train ranks2_plain 2 parallel.zero=0 parallel.cuda_graphs=false
  same ranks2_plain one
  local -x LLMTRAIN_ATTENTION=own
  train own 1
  train own_2 2 parallel.zero=3
  same own_2 own
}

case_resume() {
  local often=(checkpoint.every_steps=1 checkpoint.keep=10 run.max_steps=4)
  train whole 1 "${often[@]}"
  cut_off whole other 2
  train other 1 "${often[@]}" schedule.learning_rate=1e-4
  control other whole
  several_ranks
  cut_off whole to_two 2
  train to_two 2 "${often[@]}" parallel.zero=3
  grep -q '^resumed ' to_two.txt || fail "to_two did not resume"
  same to_two whole
  cut_off to_two to_one 3
  train to_one 1 "${often[@]}"
  grep -q '^resumed ' to_one.txt || fail "to_one did not resume"
  same to_one whole
  cut_off to_one to_four 1
  train to_four 4 "${often[@]}" parallel.zero=1
  same to_four whole
}

exported() { # exported TOOL CHECKPOINT FOLDER
  "$1" export "$2" --output "$3" >"$3.txt" 2>&1 || { cat "$3.txt" && fail "no export of $2"; }
}
hashes() { # hashes CHECKPOINT: hashes of each tensor's weights and moments, from the index of a one-rank checkpoint
  grep -aoE '\[[0-9]+(,[0-9]+){4},"[0-9a-f]{32}"\]' "$1/shard-00000-of-00001.h5"
}
case_exchange() {
  local own other from to run taken settings=(precision.compute=fp32 checkpoint.every_steps=1 checkpoint.keep=10)
  [[ -x $host/llmtrain && -x $host/llmtool ]] || skip "no programs of the host's (--host)"
  for from in host gpu; do
    if [[ $from == host ]]; then to=gpu own=$host other=$gpu; else to=host own=$gpu other=$host; fi
    train_with "$own/llmtrain" "by_$from" 1 "${settings[@]}" run.max_steps=3
    run=runs/by_$from/checkpoints taken=runs/taken_by_$to/checkpoints/$(step_name 3)
    # Both tools read the same.
    "$other/llmtool" verify "$run/$(step_name 3)"
    "$own/llmtool" inspect "$run/$(step_name 3)" >"inspected_$from.txt"
    "$other/llmtool" inspect "$run/$(step_name 3)" | cmp - "inspected_$from.txt"
    exported "$own/llmtool" "$run/$(step_name 3)" "exported_$from"
    exported "$own/llmtool" "$run/$(step_name 2)" "earlier_$from"
    exported "$other/llmtool" "$run/$(step_name 3)" "exported_by_$to"
    cmp "exported_by_$to/model.safetensors" "exported_$from/model.safetensors"
    ! cmp -s "exported_by_$to/model.safetensors" "earlier_$from/model.safetensors" || fail "the control is equal"
    # Loaded and saved again without a step: weights and moments.
    train_with "$other/llmtrain" "taken_by_$to" 1 "${settings[@]}" run.max_steps=3 \
      "checkpoint.resume=$run/$(step_name 3)" checkpoint.at_end=true
    hashes "$taken" >"hashes_by_$to.txt"
    [[ -s hashes_by_$to.txt ]] || fail "no index in $taken"
    hashes "$run/$(step_name 3)" | cmp - "hashes_by_$to.txt"
    ! hashes "$run/$(step_name 2)" | cmp -s - "hashes_by_$to.txt" || fail "the control is equal"
    "$own/llmtool" verify "$taken"
    # Steps from there.
    train_with "$other/llmtrain" "by_$from" 1 "${settings[@]}" run.max_steps=5
    grep -q '^resumed ' "by_$from.txt" || fail "by_$from did not resume"
    [[ $(wc -l <"runs/by_$from/ledger.jsonl") == 5 ]] || fail "by_$from: not 5 steps"
  done
}

case_offload() {
  local cpu=(parallel.offload_optimizer=cpu) nvme=(parallel.offload_optimizer=nvme "parallel.offload_path=$work/disk")
  local all_cpu=(parallel.zero=3 "${cpu[@]}" parallel.offload_parameters=cpu)
  local all_nvme=(parallel.zero=3 "${nvme[@]}" parallel.offload_parameters=nvme)
  train resident 1
  train on_host 1 "${cpu[@]}"
  train all_on_host 1 "${all_cpu[@]}"
  train on_disk 1 "${nvme[@]}"
  train all_on_disk 1 "${all_nvme[@]}"
  same all_on_host on_host
  same on_disk on_host
  same all_on_disk on_host
  same on_host resident # the arithmetic of AdamW is the same on both devices
  train other_update 1 "${cpu[@]}" optimizer.beta2=0.951
  control other_update on_host
  # Weights alone: those of fp32, which are not rounded from others.
  train resident_fp32 1 precision.compute=fp32
  train weights_on_host 1 precision.compute=fp32 parallel.zero=3 parallel.offload_parameters=cpu
  same weights_on_host resident_fp32
  control weights_on_host resident
  several_ranks
  train all_of_two_on_host 2 "${all_cpu[@]}"
  same all_of_two_on_host resident
  train all_of_two_on_disk 2 "${all_nvme[@]}"
  same all_of_two_on_disk resident
  [[ -z $(ls -A disk) ]] || fail "files are left in offload_path: $(ls disk)"
}

case_too_large() {
  local large=(model.d_model=32768 model.n_layers=200 model.n_heads=256 model.n_kv_heads=8 parallel.zero=0)
  ends 78 1 "not enough memory: the run needs" large 1 "${large[@]}"
  several_ranks
  ends 78 1 "not enough memory: the run needs" large_two 2 "${large[@]}"
}

# Jobs that are disturbed: an endless one runs in the background.
endless=(run.max_steps=1000000 checkpoint.every_steps=2)
ends() { # ends CODE COUNT MESSAGE NAME RANKS SETTING...: expects this end of the job, with none of its ranks left
  local command
  job "$gpu/llmtrain" "${@:4}"
  "$job_ends" "$1" "$2" "$3" "$((300 * patience))" "${command[@]}" >"$4.txt" 2>&1 || { cat "$4.txt" && fail "$4"; }
}
saved() { [[ -e runs/$1/checkpoints/latest/manifest.json ]]; }
process_of() { # process_of NAME RANK
  cat "runs/$1"/status/rank-* | sed -n "s/^{\"rank\":$2,.*\"pid\":\([0-9]*\).*/\1/p"
}
strike() { # strike SIGNAL NAME RANK: when its first checkpoint exists
  local end=$((SECONDS + 200 * patience))
  until saved "$2"; do
    if ((SECONDS >= end)) || ! kill -0 $! 2>/dev/null; then cat "$2.txt" && fail "$2 did not begin"; fi
    sleep 0.2
  done
  kill "-$1" "$(process_of "$2" "$3")" || fail "$2: no process of rank $3"
  struck=$SECONDS
}
ended() { # ended NAME SECONDS: expects that the struck job has ended within this time
  wait $! || { cat "$1.txt" && fail "$1 did not end as it should"; }
  echo "$1: ended within $((SECONDS - struck)) s"
  ((SECONDS - struck <= $2 * patience)) || { cat "$1.txt" && fail "$1: that is more than $2 s"; }
}
goes_on() { # goes_on NAME RANKS: resumes for two more steps; expects the ledger of an uninterrupted run
  local steps
  steps=$(($(wc -l <"runs/$1/ledger.jsonl") + 2))
  train "$1" "$2" "run.max_steps=$steps" "checkpoint.every_steps=2"
  grep -q '^resumed ' "$1.txt" || { cat "$1.txt" && fail "$1 did not resume"; }
  train "$1_whole" 1 "run.max_steps=$steps"
  same "$1" "$1_whole"
}

case_signal() {
  ends 75 1 "stopped by SIGTERM" signalled 1 "${endless[@]}" &
  strike TERM signalled 0
  ended signalled 60
  goes_on signalled 1
  several_ranks
  ends 75 1 "stopped by SIGTERM" signalled_two 2 "${endless[@]}" parallel.zero=2 &
  strike TERM signalled_two 1
  ended signalled_two 60
  goes_on signalled_two 1
}

case_killed_rank() {
  several_ranks
  ends 137 1 "llmtrain: rank 1 is gone" killed 2 "${endless[@]}" &
  strike KILL killed 1
  ended killed 45
  goes_on killed 2
}

case_stopped_rank() {
  several_ranks
  local patient=$((5 * patience))
  ends 76 1 "llmtrain: rank 1 is lost: no heartbeat for" stopped 2 "${endless[@]}" "watchdog.lost_after=${patient}s" &
  strike STOP stopped 1
  ended stopped 45
  grep -q 'the process is stopped' stopped.txt || { cat stopped.txt && fail "the report does not say that it is stopped"; }
  goes_on stopped 1
}

failed=0
for name in "${cases[@]}"; do
  SECONDS=0 code=0
  (set -e; "case_$name") >"case_$name.log" 2>&1 &
  wait $! || code=$?
  case $code in
    0) echo "passed   $name ($SECONDS s)" ;;
    77) echo "skipped  $name ($(sed -n 's/^skipped: //p' "case_$name.log"))" ;;
    *)
      echo "FAILED   $name ($SECONDS s)"
      tail -n 60 "case_$name.log"
      failed=1
      ;;
  esac
done
((failed == 0))
