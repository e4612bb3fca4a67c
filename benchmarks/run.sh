#!/usr/bin/env bash
# Measures the tables of docs/performance.md and benchmarks/results on this machine, one section after the other, as Markdown
# on stdout; progress goes to stderr. Nothing else should run meanwhile: all sections take about two hours on two cores.
# All needs are looked for first; anything missing is named, and then nothing is measured (exit code 66).
#
#   benchmarks/run.sh LLMTRAIN [SECTION...]
#
#   LLMTRAIN   the program, e.g. build/host/llmtrain, with the compiled benchmarks beside it (LLMTRAIN_BENCHMARKS=ON)
#   SECTION    pytorch, recompute, profile, first_step, characters, ranks, transfers, optimizer, products, quantized,
#              attention, checkpoint, load, prediction, tokenizers; default: all
# Environment: ROUNDS (5) of A B, PYTHON (python3; needs torch and safetensors, for tokenizers also tokenizers,
# sentencepiece, tiktoken and LLMTRAIN_DATA, a folder with tokenizer/), MPIRUN (mpirun), TEXT (a file to learn characters
# and tokens from; without it those two sections are not among all), SCRATCH (a folder on the disk to measure, else a
# temporary one), RANKS (2), PRELOAD (the malloc of PyTorch, tcmalloc; with TCMALLOC=none glibc's).
set -euo pipefail

if [[ $# -lt 1 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 64
fi
program=$(realpath -m -- "$1")
shift
compiled=$(dirname -- "$program")/benchmarks
here=$(cd -- "$(dirname -- "$0")" && pwd)
rounds=${ROUNDS:-5}
ranks=${RANKS:-2}
python=${PYTHON:-python3}
read -ra mpirun <<<"${MPIRUN:-mpirun} --oversubscribe --bind-to none -n $ranks"
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export PYTHONDONTWRITEBYTECODE=1
loadable() { PATH=$PATH:/sbin ldconfig -p | awk -v name="$1" '$1 ~ name && !found { print $NF; found = 1 }'; }
PRELOAD=${PRELOAD:-$(loadable '^libtcmalloc(_minimal)?[.]so' || true)}
export PRELOAD
own=$(mktemp -d)
trap 'rm -rf -- "$own"' EXIT
missing=$own/missing
work=${SCRATCH:-$own}

# table TITLE COMMAND...: prints the command's output as preformatted text.
table() {
  printf '\n%s\n\n' "$1"
  shift
  "$@" | tee /dev/stderr | sed 's/^/    /'
}
of_one_rank() { env OMP_NUM_THREADS="$(nproc)" "$@"; }
of_ranks() { "${mpirun[@]}" env OMP_NUM_THREADS=1 "$@"; }

# row OPTION...: prints the row of one case; training.py's progress goes to stderr.
row() {
  "$python" "$here/training.py" "$program" --rounds "$rounds" --markdown "$@" | tee /dev/stderr | tail -n 1
}

pytorch() {
  printf '\n| what | llmtrain, tokens/s | PyTorch, tokens/s | ratio | peak memory, ratio | GFLOP/s of both | beside |\n'
  printf '|---|---|---|---|---|---|---|\n'
  row --model gpt2-124m --batch 4 --precision bf16
  row --model gpt2-124m --batch 1 --precision bf16
  row --model gpt2-124m --batch 4 --precision fp32
  row --model gpt2-124m --batch 1 --precision fp32
  row --model llama-300m --length 512 --batch 1 --accumulate 4 --precision bf16
}
recompute() {
  table "Memory against time:" "$python" "$here/recompute.py" "$program" --rounds "$rounds"
}
# A short run of the 124M deck, whose last lines are the table of log.profile.
profiled() {
  "$@" "$here/../inputs/medium.ini" run.output="$work/runs" run.name=profile run.overwrite=true run.max_steps=8 \
    batch.micro=1 batch.global="$ranks" log.profile=4 evaluation.every_steps=0 evaluation.at_end=false \
    checkpoint.every_steps=0 checkpoint.at_end=false ${TEXT:+data.train="$TEXT"} 2>&1 | sed -n '/^profile/,$p'
}
profile() {
  table "Where the time of a step goes, one rank:" profiled of_one_rank "$program"
  table "Where the time of a step goes, $ranks ranks:" profiled of_ranks "$program"
  table "What recording it costs:" "$python" "$here/profile_overhead.py" "$program" \
    ${TEXT:+data.train="$TEXT"} --rounds "$rounds"
}
first_step() {
  table "Until the first step is done:" "$python" "$here/first_step.py" "$program" --rounds "$rounds"
}
characters() {
  PRECISION=fp32 table "The character model in fp32:" "$here/char_model.sh" "$program" "$TEXT" "$rounds"
  PRECISION=bf16 table "The character model in bf16:" "$here/char_model.sh" "$program" "$TEXT" "$rounds"
}
ranks() {
  table "Ranks of one thread beside one rank:" "$python" "$here/ranks.py" "$program" --ranks "$ranks" --rounds "$rounds"
}
transfers() {
  table "Between ranks of a node:" of_ranks "$compiled/collective_bench" 1024 "$rounds"
}
optimizer() {
  table "The optimizer's step:" of_one_rank "$compiled/optimizer_bench" 124 "$rounds"
}
products() {
  table "Matrix products:" of_one_rank "$compiled/matmul_bench"
}
quantized() {
  table "Products with quantised weights:" of_one_rank "$compiled/quantized_bench" "$rounds"
}
attention() {
  table "Attention:" of_one_rank "$compiled/attention_bench"
}
checkpoint() {
  table "A checkpoint of 512 MiB a rank:" of_ranks "$compiled/checkpoint_bench" rate "$work" 512 "$rounds"
  TMPDIR=$work table "How long training waits for checkpoints:" "$python" "$here/checkpoint_stall.py" "$program" \
    --batch 1 --every 6 --steps 26 --rounds "$rounds"
}
load() {
  "$compiled/load_bench" --make "$work/model" 2 bf16 >/dev/null
  table "Loading weights:" of_ranks "$compiled/load_bench" "$work/model" "$rounds"
}
prediction() {
  table "Prediction beside runs:" "$python" "$here/measure.py" "$program" "$here/../inputs/small.ini" --rounds "$rounds"
}
tokenizers() {
  table "Training tokenizers:" "$python" "$here/tokenizer_training.py" "$(dirname -- "$program")/llmtool" "$TEXT" \
    --rounds "$rounds"
  for threads in 1 2; do
    table "Encoding text, $threads thread(s):" "$python" "$here/peers/tokenizers_encode.py" "$compiled/tokenizer_bench" \
      "$TEXT" --threads "$threads" --rounds "$rounds"
  done
}

# Requirements of each section beside the program and Python: compiled benchmarks, llmtool, modules of Python, and so
# on.
all=(pytorch recompute profile first_step characters ranks transfers optimizer products quantized attention checkpoint
  load prediction tokenizers)
declare -A needs=(
  [pytorch]='import:torch import:safetensors tcmalloc'
  [recompute]='import:torch import:safetensors'
  [profile]='mpirun'
  [first_step]='import:torch import:safetensors tcmalloc'
  [characters]='import:torch tcmalloc TEXT'
  [ranks]='import:torch import:safetensors mpirun'
  [transfers]='collective_bench mpirun'
  [optimizer]='optimizer_bench'
  [products]='matmul_bench'
  [quantized]='quantized_bench'
  [attention]='attention_bench'
  [checkpoint]='checkpoint_bench import:torch import:safetensors mpirun'
  [load]='load_bench mpirun'
  [prediction]=''
  [tokenizers]='tokenizer_bench llmtool import:tokenizers import:sentencepiece import:tiktoken TEXT LLMTRAIN_DATA'
)

# problem NEED: prints why it is not met, or nothing.
problem() {
  case $1 in
    import:*) "$python" -c "import ${1#import:}" >/dev/null 2>&1 || echo "$python cannot import ${1#import:} (PYTHON)" ;;
    mpirun) "${mpirun[@]}" true >/dev/null 2>&1 || echo "${mpirun[0]} cannot start $ranks processes (MPIRUN, RANKS)" ;;
    tcmalloc)
      [[ ${TCMALLOC:-} == none || -f $PRELOAD ]] ||
        echo "'$PRELOAD' cannot be preloaded into PyTorch as its malloc: install tcmalloc (libtcmalloc-minimal4), or TCMALLOC=none (PRELOAD)"
      ;;
    TEXT) [[ -f ${TEXT:-} && -r ${TEXT:-} ]] || echo "'${TEXT:-}' is not a readable file (TEXT)" ;;
    LLMTRAIN_DATA)
      [[ -d ${LLMTRAIN_DATA:-}/tokenizer ]] || echo "'${LLMTRAIN_DATA:-}' has no folder tokenizer/ (LLMTRAIN_DATA)"
      ;;
    llmtool) [[ -x ${program%/*}/llmtool ]] || echo "${program%/*}/llmtool is not there" ;;
    *) [[ -x $compiled/$1 ]] || echo "$compiled/$1 is not there: build it (LLMTRAIN_BENCHMARKS=ON)" ;;
  esac
}

sections=("$@")
if [[ $# == 0 ]]; then
  for section in "${all[@]}"; do
    if [[ -z ${TEXT:-} && " ${needs[$section]} " == *' TEXT '* ]]; then
      printf '%s: left out, TEXT names no file\n' "$section" >&2
    else
      sections+=("$section")
    fi
  done
fi
wanted=()
for section in "${sections[@]}"; do
  if [[ " ${all[*]} " != *" $section "* ]]; then
    printf '%s: no section of that name; there are: %s\n' "$section" "${all[*]}" >&2
    exit 64
  fi
  read -ra these <<<"${needs[$section]}"
  wanted+=("${these[@]}")
done
[[ -z ${TEXT:-} ]] || wanted+=(TEXT)
{
  "$program" --version >/dev/null 2>&1 || echo "$program does not start"
  "$python" -c '' >/dev/null 2>&1 || echo "$python does not start (PYTHON)"
  [[ $rounds =~ ^[1-9][0-9]*$ ]] || echo "'$rounds' is not a number of rounds (ROUNDS)"
  [[ -d $work && -w $work ]] || echo "$work is not a writable folder (SCRATCH)"
  while read -r need; do problem "$need"; done < <(printf '%s\n' "${wanted[@]}" | sort -u | sed '/^$/d')
} >"$missing"
if [[ -s $missing ]]; then
  sed 's/^/missing: /' "$missing" >&2
  exit 66
fi

printf 'On %s.\n' "$("$python" -c "import sys; sys.path.insert(0, '$here'); import training; print(training.processor())")"
for section in "${sections[@]}"; do
  printf '%s\n' "$section ..." >&2
  "$section"
done
