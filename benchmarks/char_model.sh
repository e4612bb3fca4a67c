#!/usr/bin/env bash
# Trains nanoGPT's character model with PyTorch and with llmtrain in turn (A B A B ...) on the same cores and text, with
# the same learning rate and number format, and prints the ratio of their times from start to exit, of their tokens/s,
# and both losses over the validation split, which must not differ by more than chance (0.05; other samples are drawn).
# PyTorch runs eager and compiled in the first round; the faster one goes on.
#
#   benchmarks/char_model.sh LLMTRAIN TEXT [ROUNDS]
#
#   LLMTRAIN   the program, e.g. build/host/llmtrain
#   TEXT       e.g. tinyshakespeare
#   ROUNDS     of A B, default 3
# Environment: PYTHON (python3; needs torch), PRECISION (fp32 or bf16, fp32), STEPS (2000), RANKS (1), THREADS (all
# cores / RANKS), DECK (inputs/shakespeare_char.ini), DECK_OPTIONS (with RANKS=2 batch.micro=6, so that both have work),
# MPIRUN (mpirun), PRELOAD (PyTorch's malloc; tcmalloc where there is one, unless TCMALLOC is none).
set -euo pipefail

if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
  exit 64
fi
program=$(realpath -- "$1")
text=$(realpath -m -- "$2")
rounds=${3:-3}
here=$(cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python3}
steps=${STEPS:-2000}
ranks=${RANKS:-1}
cores=$(nproc)
threads=${THREADS:-$((cores > ranks ? cores / ranks : 1))}
deck=${DECK:-$here/../inputs/shakespeare_char.ini}
if [[ ! $rounds =~ ^[1-9][0-9]*$ ]]; then echo "char_model.sh: ROUNDS is '$rounds': it must be a number from 1 on" >&2 && exit 64; fi
if [[ ! -s $text ]]; then echo "char_model.sh: $text is not a file with text" >&2 && exit 66; fi
precision=${PRECISION:-fp32}
peer_options=()
case $precision in
  fp32) ;;
  bf16) peer_options+=(--bf16) ;;
  *) echo "char_model.sh: PRECISION is '$precision': it must be fp32 or bf16" >&2 && exit 64 ;;
esac
read -ra deck_options <<<"${DECK_OPTIONS:-}"
read -ra mpirun <<<"${MPIRUN:-mpirun}"
# As in training.py: freeing and touching memory again costs PyTorch time.
peer_memory=(THP_MEM_ALLOC_ENABLE=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=$((2 ** 40)))
library=
if [[ ${TCMALLOC:-} != none ]]; then
  library=${PRELOAD:-$(PATH=$PATH:/sbin ldconfig -p | awk '/libtcmalloc(_minimal)?\.so/ && !found { print $NF; found = 1 }')}
fi
if [[ -n $library ]]; then peer_memory+=("LD_PRELOAD=$library"); fi
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# timed LOG COMMAND...: prints the seconds from start to exit on stdout; the command's output goes to LOG and is shown
# if it fails.
timed() {
  local log=$1 begin end
  shift
  begin=$(date +%s.%N)
  if ! "$@" >"$log" 2>&1; then
    cat -- "$log" >&2
    echo "failed: $*" >&2
    return 1
  fi
  end=$(date +%s.%N)
  awk -v a="$begin" -v b="$end" 'BEGIN { printf "%.3f", b - a }'
}

# peer ROUND NAME OPTION...: runs PyTorch.
peer() {
  local seconds
  seconds=$(timed "$work/a.log" env "${peer_memory[@]}" "$python" "$here/peers/nanogpt_char.py" "$text" \
    --steps "$steps" --threads $((ranks * threads)) --json "$work/a.json" "${peer_options[@]}" "${@:3}")
  "$python" - "$work" "$1" "$2" "$seconds" <<'PYTHON'
import json, sys
work, number, name, seconds = sys.argv[1:]
r = json.load(open(f"{work}/a.json"))
row = dict(name=name, seconds=float(seconds), speed=r["tokens_per_second"], loss=r["validation_loss"],
           version=f"PyTorch {r['torch']} {name}, malloc of {r['malloc']}")
open(f"{work}/rows", "a").write(json.dumps(row) + "\n")
print(f"{number:<6} {name:<9} {row['seconds']:10.2f} {row['speed']:12.0f} {row['loss']:16.4f}")
PYTHON
}

# The peer that was faster in the first round.
faster_peer() {
  "$python" - "$work" <<'PYTHON'
import json, sys
rows = [json.loads(line) for line in open(f"{sys.argv[1]}/rows")]
print(min((r for r in rows if r["name"] != "llmtrain"), key=lambda r: r["seconds"])["name"])
PYTHON
}

echo "$precision"
printf '%-6s %-9s %10s %12s %16s\n' round program seconds tokens/s 'validation loss'
peers=(eager compiled)
for ((round = 1; round <= rounds; ++round)); do
  for name in "${peers[@]}"; do
    options=()
    if [[ $name == compiled ]]; then options+=(--compile); fi
    peer "$round" "$name" "${options[@]}"
  done
  if ((round == 1)); then peers=("$(faster_peer)"); fi

  rm -rf -- "$work/runs"
  launch=()
  if ((ranks > 1)); then launch=("${mpirun[@]}" --oversubscribe --bind-to none -n "$ranks"); fi
  seconds=$(OMP_NUM_THREADS=$threads timed "$work/b.log" "${launch[@]}" "$program" "$deck" "data.train=$text" \
    "run.max_steps=$steps" "run.output=$work/runs" run.name=char evaluation.every_steps=0 evaluation.at_end=true \
    log.samples_every_steps=0 schedule.learning_rate=1e-3 "precision.compute=$precision" "${deck_options[@]}")
  "$python" - "$work" "$round" llmtrain "$seconds" <<'PYTHON'
import json, statistics, sys
work, number, name, seconds = sys.argv[1:]
ledger = [json.loads(line) for line in open(f"{work}/runs/char/ledger.jsonl")]
loss = [float.fromhex(line["validation_loss"]) for line in ledger if "validation_loss" in line][-1]
lines = [json.loads(line) for line in open(f"{work}/runs/char/metrics.jsonl")]
speed = statistics.median(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
row = dict(name=name, seconds=float(seconds), speed=speed, loss=loss)
open(f"{work}/rows", "a").write(json.dumps(row) + "\n")
print(f"{number:<6} {name:<9} {row['seconds']:10.2f} {row['speed']:12.0f} {row['loss']:16.4f}")
PYTHON
done

"$python" - "$work" "$ranks" "$threads" "$steps" "${peers[0]}" <<'PYTHON'
import json, statistics, sys
work, ranks, threads, steps, peer = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{work}/rows")]
median = lambda name, key: statistics.median(r[key] for r in rows if r["name"] == name)
version = next(r["version"] for r in rows if r["name"] == peer)
print(f"\n{steps} steps, {ranks} rank(s) x {threads} thread(s), medians; {version}; above 1 llmtrain is ahead")
print(f"time from start to exit  PyTorch / llmtrain  {median(peer, 'seconds') / median('llmtrain', 'seconds'):.3f}")
print(f"tokens/s                 llmtrain / PyTorch  {median('llmtrain', 'speed') / median(peer, 'speed'):.3f}")
difference = median("llmtrain", "loss") - median(peer, "loss")
print(f"validation loss          llmtrain - PyTorch  {difference:+.4f}")
if abs(difference) > 0.05:
    sys.exit("the losses differ by more than chance, so the times cannot be compared")
PYTHON
