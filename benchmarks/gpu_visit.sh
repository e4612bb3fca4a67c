#!/usr/bin/env bash
# The first minutes on a GPU: whether the program runs, computes right and keeps its promises there, then how fast it is.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: gpu_visit.sh BUNDLE OUT SECONDS [--small]

BUNDLE is what `cmake/bundle.sh --programs` made, or the folder unpacked from it, beside a checkout of the same sources.
The stages share SECONDS (530 do all of it, at least 60); each has a limit, and what one leaves belongs to the next.
OUT gets at most three files: summary.txt, figures.jsonl, logs.tar.xz.

  --small  sizes for the emulator

The visit ends at once if the program does not start (stage `start`) or a number is wrong (stage `probe`). What the machine
lacks (ncu, compute-sanitizer, PyTorch, cuDNN in the emulator) is named and passed over.
Exit code 0: nothing failed; 1: something did; 66: BUNDLE cannot be used.
TEXT
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage && exit 0; }
(($# == 3 || $# == 4)) || { usage >&2 && exit 64; }
[[ $3 =~ ^[0-9]{2,5}$ && ${4:---small} == --small ]] || { usage >&2 && exit 64; }
small=false
(($# == 3)) || small=true
started=$SECONDS allowed=$3
tree=$(dirname "$(dirname "$(readlink -f "$0")")")
mkdir -p "$2" && out=$(readlink -f "$2") || exit 73
[[ -e $1 ]] || { echo "gpu_visit.sh: there is no bundle $1" >&2 && exit 66; }
bundle=$(readlink -f "$1")
set -m # each stage is a process group, which can be ended as a whole
work=$(mktemp -d)
logs=$work/logs
mkdir "$logs"
: >"$out/figures.jsonl"
: >"$out/summary.txt"

# Whatever ends the visit, OUT has what was found until then.
failed=0
finish() {
  local log job
  for job in $(jobs -p); do kill -KILL -- "-$job" 2>/dev/null; done
  for log in "$logs"/*; do # a program may print without end
    (($(stat -c %s "$log") < 4000000)) || { tail -c 2000000 "$log" >"$log.end" && mv "$log.end" "$log"; }
  done
  tar -C "$work" -cJf "$out/logs.tar.xz" logs
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT HUP

if [[ -f $bundle ]]; then
  mkdir "$work/bundle" && tar -xf "$bundle" -C "$work/bundle" --strip-components=1 || exit 66
  bundle=$work/bundle
fi
[[ -x $bundle/bin/llmtrain ]] || { echo "gpu_visit.sh: $1 has no bin/llmtrain" >&2 && exit 66; }
cd "$tree" || exit 66 # tests find tests/reference from here
# shellcheck source=tests/cuda/bundled.sh
. tests/cuda/bundled.sh
find_libraries "$bundle" "$work/lib"
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
program=$work/llmtrain
wrap "$program" "${by_loader[@]}" "$bundle/bin/llmtrain"
emulated=false
[[ -z ${LLMTRAIN_EMULATOR_CAPABILITY:-} ]] || emulated=true
has_cudnn=false
[[ $("$program" --version 2>/dev/null) != *cuDNN* ]] || has_cudnn=true

fail() { echo "$*" && exit 1; }
pass_over() { echo "= $*" && exit 77; }
result='' # of a stage so far
add_result() { result+="${result:+, }$*" && echo "= $result"; }

# train_on RANKS DECK NAME SETTING...: a run named NAME, whose output is NAME.log. The last of equal keys counts.
train_on() {
  local ranks=$1 deck=$2 name=$3 code=0 setting
  shift 3
  local -A settings=()
  for setting in "run.output=$work/runs" "data.cache=$work/cache" "run.name=$name" run.overwrite=true evaluation.every_steps=0 \
    evaluation.at_end=false checkpoint.every_steps=0 checkpoint.at_end=false log.every_steps=1 log.sinks=jsonl \
    log.parameter_hash_every_steps=1 "$@"; do
    settings[${setting%%=*}]=$setting
  done
  launch "$ranks" "$bundle/bin/llmtrain" "$deck" "${settings[@]}" >"$logs/$name.log" 2>&1 || code=$?
  ((code == 0)) || { tail -n 15 "$logs/$name.log" && fail "$name: exit code $code"; }
}
train() { train_on 1 "$@"; }
all_of() { # waits for what was started with &
  local job
  for job in $(jobs -p); do wait "$job" || fail "a run failed"; done
}
same() { # same RUN REFERENCE: expects equal ledgers
  cmp "$work/runs/$1/ledger.jsonl" "$work/runs/$2/ledger.jsonl" || fail "$1: another ledger than $2"
  add_result "$1 = $2"
}
figures() { # figures RUN [ESTIMATE]
  "$python" benchmarks/visit_figures.py "$work/runs/$1" "$@" || fail "$1 has no figures"
}

stage_start() {
  ((${#missing[@]} == 0)) || echo "not found on this machine: ${missing[*]}"
  $emulated || nvidia-smi || echo "nvidia-smi is not here"
  "$program" --version || fail "the program does not start"
  $emulated || $has_cudnn || fail "--version names no cuDNN: PYTHON names an interpreter with torch, CUDA_HOME the toolkit"
  local deck=tests/cuda/small.ini sizes=()
  ! $small || sizes=(run.max_steps=2 model.d_model=32 batch.sequence_length=64 batch.global=4)
  LLMTRAIN_ATTENTION=own train "$deck" small_own "${sizes[@]}"
  figures small_own
  add_result "own attention"
  LLMTRAIN_ATTENTION=own train "$deck" small_plain "${sizes[@]}" parallel.cuda_graphs=false
  same small_plain small_own
  $has_cudnn || return 0
  LLMTRAIN_ATTENTION=cudnn train "$deck" small_cudnn "${sizes[@]}" data.cross_document_attention=true
  figures small_cudnn
  add_result "cuDNN's attention"
}

probe() { # probe OPTION...: says how many items are right
  local code=0 lines=$logs/$name.log
  ! $small || set -- --small "$@"
  LLMTRAIN_NCCL=always run "$bundle/gpu_tests/gpu_probe" "$@" || code=$?
  add_result "$(grep -c '"ok": true' "$lines") right, $(grep -c '"ok": false' "$lines") wrong, $(grep -c '"skipped": ' "$lines") passed over"
  grep '"ok": false' "$lines" | sed 's/.*"what": "\([^"]*\)".*"wrong": "\([^"]*\)".*/= WRONG: \1: \2/' | sed 1q
  return "$code"
}
stage_probe() { probe; }

stage_tests() {
  local test shard shards=8 bad=0 all=0 code filter='*'
  ! $small || shards=2 filter='*NormTest*:*Rope*:*Norm.*'
  for test in "$bundle"/gpu_tests/test_*; do
    [[ -x $test ]] || continue
    local jobs=()
    for ((shard = 0; shard < shards; ++shard)); do
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard run "$test" --gtest_brief=1 --gtest_filter="$filter" \
        >"$logs/${test##*/}.$shard.log" 2>&1 &
      jobs+=($!)
    done
    for ((shard = 0; shard < shards; ++shard)); do
      code=0 all=$((all + 1))
      wait "${jobs[shard]}" || code=$?
      ((code == 0 || code == 77)) || { bad=$((bad + 1)) && echo "${test##*/}, shard $shard: exit code $code"; }
    done
    result="${test##*/} is the last of $all shards, $bad failed" && echo "= $result"
  done
  grep -h '^\[  FAILED  \] .*[^)]$\|^\[  FAILED  \].*GetParam' "$logs"/test_*.log | sort -u
  ((all > 0)) || pass_over "the bundle has no tests"
  ((bad == 0))
}

# GPT-2 124M, or a tiny one, on rows without dropout.
stage_runs() {
  local deck=inputs/medium.ini sizes=(run.max_steps=6 batch.micro=4 batch.global=16 parallel.reduction_groups=2)
  ! $small || sizes+=(model.d_model=32 model.n_heads=2 model.n_layers=2 model.d_ff=64 model.vocab_size=320 batch.sequence_length=64
    run.max_steps=4)
  train "$deck" one "${sizes[@]}"
  train "$deck" again "${sizes[@]}" &
  train "$deck" plain "${sizes[@]}" parallel.cuda_graphs=false &
  train_on 2 "$deck" ranks2 "${sizes[@]}" &
  all_of
  same again one && same plain one && same ranks2 one
  train "$deck" seed "${sizes[@]}" run.seed=43 &
  LLMTRAIN_NCCL=always train "$deck" nccl "${sizes[@]}" &
  train "$deck" resumed "${sizes[@]}" checkpoint.every_steps=2 &
  all_of
  ! cmp -s "$work/runs/seed/ledger.jsonl" "$work/runs/one/ledger.jsonl" || fail "the control: another seed has the same ledger"
  same nccl one && same resumed one
  cut_off resumed
  train "$deck" resumed "${sizes[@]}" run.overwrite=false
  grep -q '^resumed ' "$logs/resumed.log" || fail "the run did not resume"
  same resumed one
  local lora=("${sizes[@]}" run.finetuning=lora lora.r=16 lora.alpha=32 lora.dropout=0.1)
  train "$deck" lora "${lora[@]}" &
  train "$deck" lora_plain "${lora[@]}" parallel.cuda_graphs=false &
  LLMTRAIN_ATTENTION=own train "$deck" own "${sizes[@]}" &
  LLMTRAIN_ATTENTION=own train "$deck" own_again "${sizes[@]}" &
  all_of
  same own_again own && same lora_plain lora
}
cut_off() { # leaves a run as a job does that is killed after its second step
  local path
  rm -f "$work/runs/$1/finished.json"
  for path in "$work/runs/$1/checkpoints"/step-*; do
    [[ ! ${path##*/} > step-00000002 ]] || rm -r "$path"
  done
}

stage_sanitizer() {
  $emulated && pass_over "the emulator checks accesses itself"
  command -v compute-sanitizer >/dev/null || pass_over "compute-sanitizer is not here"
  local tool jobs=() bad=0 code
  local tools=(memcheck racecheck initcheck synccheck)
  for tool in "${tools[@]}"; do
    compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 --print-limit 20 "${by_loader[@]}" "$bundle/bin/llmtrain" \
      tests/cuda/small.ini "run.output=$work/runs" "data.cache=$work/cache" "run.name=$tool" run.max_steps=1 >"$logs/$tool.log" 2>&1 &
    jobs+=($!)
  done
  for tool in "${tools[@]}"; do
    code=0
    wait "${jobs[0]}" || code=$?
    jobs=("${jobs[@]:1}")
    grep -h 'ERROR SUMMARY\|Device not supported' "$logs/$tool.log"
    ! grep -q 'Device not supported' "$logs/$tool.log" || pass_over "compute-sanitizer does not support this machine"
    ((code == 0)) || bad=$((bad + 1))
    add_result "$tool: $(grep -ho "ERROR SUMMARY: .*" "$logs/$tool.log" || echo "exit code $code")"
  done
  ((bad == 0))
}

# rows_of FILE VOCABULARY COUNT LENGTH: random tokens, since few different ones would make the embedding's gradient slow.
rows_of() {
  "$python" -c '
import json, random, sys
source, vocabulary, count, length = random.Random(1), *map(int, sys.argv[2:])
with open(sys.argv[1], "w") as file:
    for _ in range(count):
        file.write(json.dumps({"input_ids": [int(vocabulary * source.random()) for _ in range(length)]}) + "\n")' "$@"
}
# measured NAME ROWS LENGTH MICRO SETTING...: 20 steps of new weights, of which four are profiled, and the plan's memory.
measured() {
  local name=$1 rows=$2 length=$3 micro=$4 steps=20
  shift 4
  ! $small || steps=6
  printf '[model]\nmax_seq_len = %s\n[data]\ntrain = %s\npacking = none\nshuffle = false\nvalidation_fraction = 0
[batch]\nsequence_length = %s\nmicro = %s\nglobal = %s\n' "$length" "$rows" "$length" "$micro" "$micro" >"$work/$name.ini"
  set -- run.max_steps=$steps precision.compute=bf16 "$@"
  $emulated || set -- log.profile=3 "$@" # which measures the device's limits first: minutes in the emulator
  train "$work/$name.ini" "$name.estimate" "$@" --estimate --json
  train "$work/$name.ini" "$name" "$@" log.parameter_hash_every_steps=0
  sed -n '/^profile/,$p' "$logs/$name.log"
  figures "$name" "$logs/$name.estimate.log"
  add_result "$name $(grep "\"run\": \"$name\"" "$logs/training.log" | sed 's/.*"tokens_per_second": \([0-9.]*\).*/\1/') tokens/s"
}
stage_training() {
  local gpt2=(model.family=gpt2 model.vocab_size=50304)
  local llama=(model.family=llama model.vocab_size=128256 model.d_model=4096 model.n_layers=8 model.n_heads=32 model.n_kv_heads=8
    model.d_ff=14336 model.tie_embeddings=false model.rope_theta=500000 run.finetuning=lora lora.r=16 lora.alpha=32 lora.dropout=0.05)
  local tiny=(model.vocab_size=320 model.d_model=32 model.n_layers=2 model.n_heads=2)
  if $small; then
    rows_of "$work/short.jsonl" 320 24 65 && rows_of "$work/long.jsonl" 320 12 129
    measured tiny "$work/short.jsonl" 64 4 "${gpt2[@]}" "${tiny[@]}"
    measured tiny_qlora "$work/long.jsonl" 128 2 "${llama[@]}" "${tiny[@]}" model.n_kv_heads=1 model.d_ff=64 quantization.bits=4
    return
  fi
  rows_of "$work/short.jsonl" 50304 320 1025 && rows_of "$work/long.jsonl" 128256 40 4097
  measured gpt2_124m "$work/short.jsonl" 1024 64 "${gpt2[@]}" model.d_model=768 model.n_layers=12 model.n_heads=12
  measured gpt2_1558m "$work/short.jsonl" 1024 16 "${gpt2[@]}" model.d_model=1600 model.n_layers=48 model.n_heads=25
  measured llama8b_8_layers_lora "$work/long.jsonl" 4096 4 "${llama[@]}"
  measured llama8b_8_layers_qlora "$work/long.jsonl" 4096 4 "${llama[@]}" quantization.bits=4
}

stage_kernels() {
  local bench=("$bundle/gpu_tests/gpu_kernels_bench")
  ! $small || bench+=(small)
  probe --timings || fail "an item is wrong"
  LLMTRAIN_ATTENTION=own run "${bench[@]}" || fail "gpu_kernels_bench"
  add_result "kernels with own attention"
  $has_cudnn || return 0
  LLMTRAIN_ATTENTION=cudnn run "${bench[@]}" attention || fail "gpu_kernels_bench attention"
  add_result "cuDNN's attention"
}

# Bandwidth and occupancy of the kernels of a small model's second step.
stage_counters() {
  $emulated && pass_over "the emulator has no counters"
  command -v ncu >/dev/null || pass_over "ncu is not here"
  ncu --clock-control none --target-processes all --launch-skip 40 --launch-count 12 --section SpeedOfLight --section Occupancy \
    --section LaunchStats "${by_loader[@]}" "$bundle/bin/llmtrain" inputs/medium.ini "run.output=$work/runs" "data.cache=$work/cache" \
    run.name=counters run.max_steps=1 batch.micro=16 batch.global=16 parallel.cuda_graphs=false evaluation.at_end=false \
    checkpoint.at_end=false || fail "ncu"
  add_result "12 kernels"
}

stage_pytorch() {
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || pass_over "no PyTorch here has a GPU (PYTHON)"
  PYTHON=$python "$python" benchmarks/gpu_training.py "$program" --models gpt2-124m --rounds 1 || fail "gpu_training.py"
  add_result "$(sed -n 's/^tokens\/s *//p' "$logs/pytorch.log")"
}

say() { echo "$*" | tee -a "$out/summary.txt"; }
# stage NAME END: runs stage_NAME until END of the 530 s of a whole visit at the latest, scaled to the time allowed. Its
# log is NAME.log; the lines in it that are JSON are figures; the last line that begins with "= " is its result.
stage() {
  local name=$1 begin=$SECONDS code=0 left=$(($2 * allowed / 530 - (SECONDS - started))) outcome result
  if ((left < 2)); then say "$name: passed over: no time is left" && return; fi
  (
    trap - EXIT TERM INT HUP
    "stage_$name"
  ) >"$logs/$name.log" 2>&1 &
  local child=$!
  (
    trap - EXIT TERM INT HUP
    sleep "$left" && touch "$work/late.$name" && kill -KILL -- "-$child"
  ) 2>/dev/null &
  local clock=$!
  wait "$child" || code=$?
  kill -KILL -- "-$clock" 2>/dev/null
  wait "$clock" 2>/dev/null
  grep '^{' "$logs/$name.log" | sed "s/^{/{\"stage\": \"$name\", /" >>"$out/figures.jsonl"
  result=$(sed -n 's/^= //p' "$logs/$name.log" | tail -n 1)
  case $code in
    0) outcome=passed ;;
    77) outcome='passed over' ;;
    *) outcome=FAILED failed=1 ;;
  esac
  [[ ! -e $work/late.$name ]] || outcome="unfinished after $left s"
  say "$name: $outcome ($((SECONDS - begin)) s)${result:+: $result}"
  [[ $outcome != FAILED ]] || tail -n 30 "$logs/$name.log" >&2
  [[ $name != start || $code == 0 ]] || exit 1
  [[ $name != probe || $outcome != FAILED ]] || exit 1
}

stage start 20
stage probe 60
stage tests 130
stage runs 175
stage sanitizer 235
stage training 330
stage kernels 400
stage counters 440
stage pytorch 530
say "the visit took $((SECONDS - started)) s of $allowed"
((failed == 0))
