#!/usr/bin/env bash
# without_device.sh BUILD MPIRUN...: the programs of the CUDA build in BUILD without a visible GPU.
set -euo pipefail
build=$1
shift
llmtrain=$build/llmtrain llmtool=$build/llmtool
for program in "$llmtrain" "$llmtool"; do
  [[ -x $program ]] || exec "$(dirname "$0")/left_out.sh" cuda "cuda.without_device ($program was not built: the cuda preset is)"
done
export CUDA_VISIBLE_DEVICES='' # also on a machine with a GPU
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "without_device.sh: $*" && exit 1; }

for ((i = 0; i < 200; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 2
[model]
d_model = 64
n_layers = 2
n_heads = 2
[data]
train = $work/text.txt
[batch]
sequence_length = 16
global = 4
END

# Inspection and planning need no GPU, on one rank and on several.
"$llmtrain" --version | tee version.txt
grep -q '(cuda)' version.txt || fail "not the CUDA build"
grep -Eq ', NCCL [0-9]+\.[0-9]+\.[0-9]+[, ]' version.txt || fail "--version does not name NCCL"
grep -Eq ', cuBLASLt [0-9]+\.[0-9]+\.[0-9]+[, ]' version.txt || fail "--version does not name cuBLASLt"
"$llmtrain" --help precision.compute | grep -q bf16 || fail "--help"
"$llmtrain" deck.ini --check >resolved.ini
grep -q '^compute = bf16' resolved.ini || fail "--check: precision.compute is not what the build's GPUs are fast at"
"$llmtrain" deck.ini --estimate | tee estimate.txt
"$llmtrain" deck.ini --estimate --json --ranks 16 --ranks-per-node 8 parallel.zero=3 >sixteen.json
"$@" "$llmtrain" deck.ini --estimate --json >two.json
number() { # key file
  sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" "$2"
}
for file in sixteen.json two.json; do
  # A context and the workspace of products, independent of the number of ranks.
  (($(number libraries "$file") >= (512 + 64) << 20)) || fail "$file: no memory for the libraries"
done
[[ $(number ranks two.json) == 2 && $(number ranks_per_node two.json) == 2 ]] || fail "two.json: ranks"
((8 * $(number total sixteen.json) == $(number bytes_per_node sixteen.json))) || fail "sixteen.json: a node"
(($(number optimizer sixteen.json) < $(number optimizer two.json))) || fail "sixteen.json: the optimizer is not divided"

# cuDNN's attention, if the library is installed, needs more memory than the built-in one: in bf16 and in fp16.
total_with() { # total_with COMPUTE ATTENTION
  LLMTRAIN_ATTENTION=$2 "$llmtrain" deck.ini --estimate --json batch.sequence_length=512 batch.micro=4 data.packing=wrap \
    data.tokenizer=bytes "precision.compute=$1" >attention.json 2>assumed.txt
  number total attention.json
}
if grep -q cuDNN version.txt; then
  for compute in bf16 fp16; do
    (($(total_with "$compute" auto) > $(total_with "$compute" own))) || fail "$compute: attention is not cuDNN's"
  done
  (($(total_with fp32 auto) == $(total_with fp32 own))) || fail "control: fp32 has no cuDNN attention"
  total_with bf16 own >own.txt
  ! grep attention assumed.txt || fail "control: nothing is taken for granted of cuDNN"
  total_with bf16 auto >auto.txt
  grep -q '^attention: .* of cuDNN .*, which was found here, is included$' assumed.txt || fail "cuDNN is not said to be counted"
  mkdir broken && : >broken/libcudnn.so.9
  LD_LIBRARY_PATH=$work/broken total_with bf16 auto | cmp - own.txt || fail "attention without cuDNN is not ours"
  grep -q '^attention: no usable cuDNN .*, which is not included$' assumed.txt || fail "cuDNN is not said to be missing"
elif [[ ,${LLMTRAIN_REQUIRE:-}, == *,cudnn,* ]]; then
  fail "--version names no cuDNN; LLMTRAIN_REQUIRE has cudnn"
fi

# Training a tokenizer needs no GPU, on one rank and on several.
tokenizer=("$llmtrain" deck.ini run.task=tokenizer data.tokenizer=bpe data.vocab_size=300)
"${tokenizer[@]}" run.name=one >/dev/null || fail "run.task = tokenizer"
"$@" "${tokenizer[@]}" run.name=two >/dev/null || fail "run.task = tokenizer, several ranks"
[[ -s runs/one/tokenizer.json ]] || { ls runs/one && fail "no tokenizer"; }
cmp runs/one/tokenizer.json runs/two/tokenizer.json || fail "several ranks learn another tokenizer"
rm -r runs

# Computation ends with 69, on every rank, and leaves nothing behind.
refuses() { # refuses CODE COMMAND...
  local wanted=$1 code=0
  shift
  timeout --kill-after=5 120 "$@" >out.txt 2>err.txt || code=$?
  ((code == wanted)) || { cat out.txt err.txt && fail "exit code $code, not $wanted: $*"; }
}
no_device() {
  refuses 69 "$@"
  [[ $(grep -c 'finds none on this machine' err.txt) == 1 ]] || { cat err.txt && fail "not one message: $*"; }
  grep -q 'host build' err.txt || fail "no remedy: $*"
}
no_device "$llmtrain" deck.ini
no_device "$@" "$llmtrain" deck.ini
no_device "$llmtrain" deck.ini --estimate --measure
[[ ! -e runs/deck ]] || fail "a run without a GPU made its folder"
refuses 78 "$llmtrain" deck.ini --check model.d_model=0 # errors of decks have priority
refuses 64 "$llmtrain" deck.ini --estimat

# cuDNN's attention on request: unsupported for 16 tokens, or not installed.
for ranks in 1 2; do
  command=("$llmtrain" deck.ini --estimate)
  ((ranks == 1)) || command=("$@" "${command[@]}")
  refuses 66 env LLMTRAIN_ATTENTION=cudnn "${command[@]}"
  [[ $(grep -c "LLMTRAIN_ATTENTION is 'cudnn', but" err.txt) == 1 ]] || { cat err.txt && fail "attention, $ranks ranks"; }
done
LLMTRAIN_ATTENTION=own "$llmtrain" deck.ini --estimate >/dev/null || fail "control: our attention to 16 tokens"

# The companion program.
"$llmtool" --help >/dev/null
"$llmtool" corpus stories --bytes 20000 --seed 1 --output stories.txt >/dev/null 2>&1
"$llmtool" tokenizer train --input stories.txt --vocab-size 300 --output bpe 2>/dev/null
"$llmtool" tokenizer encode --tokenizer bpe --input text.txt --ids >ids.txt
[[ -s ids.txt ]] || fail "no ids"
"$llmtool" prepare --input stories.txt --tokenizer bytes --output stories.h5 2>/dev/null
"$llmtool" inspect stories.h5 >/dev/null
"$llmtool" validate stories.txt --tokenizer stories.h5 >/dev/null 2>&1
if [[ -d ${LLMTRAIN_TEST_MODEL:-} ]]; then
  "$llmtool" inspect "$LLMTRAIN_TEST_MODEL/model.safetensors" >/dev/null
  no_device "$llmtool" generate --model "$LLMTRAIN_TEST_MODEL" --prompt-ids 1,2,3 --greedy
fi

# Commands that only read and write files give the same results as the host's programs.
if [[ -x ${LLMTRAIN_HOST:-}/llmtrain && -x ${LLMTRAIN_HOST:-}/llmtool ]]; then
  "$LLMTRAIN_HOST/llmtrain" deck.ini run.name=host >host.txt 2>&1 || { cat host.txt && fail "a run of the host's"; }
  checkpoint=runs/host/checkpoints/step-00000002
  "$llmtool" verify "$checkpoint" | tee verified.txt
  grep -q ': intact, step 2, ' verified.txt || fail "verify"
  "$llmtool" inspect "$checkpoint" >inspected.txt
  "$LLMTRAIN_HOST/llmtool" inspect "$checkpoint" | cmp - inspected.txt || fail "inspect"
  for source in "$checkpoint" "${LLMTRAIN_TEST_MODEL:-$checkpoint}"; do
    for dtype in fp32 bf16; do
      "$llmtool" export "$source" --output "ours_$dtype" --dtype "$dtype" --force >/dev/null || fail "export of $source"
      "$LLMTRAIN_HOST/llmtool" export "$source" --output "hosts_$dtype" --dtype "$dtype" --force >/dev/null
      diff -r "ours_$dtype" "hosts_$dtype" || fail "export of $source to $dtype is not the host's"
    done
    ! cmp -s ours_fp32/model.safetensors ours_bf16/model.safetensors || fail "control: exports of two types are equal"
  done
  cp -r "$checkpoint" damaged
  printf x | dd of=damaged/shard-00000-of-00001.h5 bs=1 seek=5000 conv=notrunc status=none
  refuses 65 "$llmtool" verify damaged
fi
