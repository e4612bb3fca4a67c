#!/usr/bin/env bash
# read_run.sh ROOT LLMTRAIN LLMTOOL MPIRUN...: docs/read_run.py on a run of two ranks: it finds parameters, moments and
# metrics, and the parameters are, to the bit, those that llmtool exports; of another step they are not (control).
# docs/analyse_runs.py, where pandas and matplotlib are there, on that run and one of another rate.
set -euo pipefail
root=$1 llmtrain=$2 llmtool=$3
shift 3
python=
for candidate in "${LLMTRAIN_PYTHON:-python3}" /usr/bin/python3; do
  if "$candidate" -c 'import h5py, numpy' 2>/dev/null; then python=$candidate && break; fi
done
[[ -n $python ]] || { echo "skipped: no python3 with h5py (Debian: python3-h5py; or LLMTRAIN_PYTHON=...)" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 6
output = $work/runs
[model]
d_model = 16
n_layers = 2
n_heads = 2
[data]
train = $work/text.txt
[batch]
sequence_length = 16
global = 4
[evaluation]
every_steps = 3
[log]
every_steps = 2
samples_every_steps = 6
sample_length = 1
# longer than a line of the printed deck, which has the origin of such a value before it
sample_prompts = Line has some words to train on and some words to train on and some words to train on and some words to train on,
  Lines
[checkpoint]
every_steps = 3
END
"$@" "$llmtrain" deck.ini run.name=a >log.txt || { cat log.txt && exit 1; }
last=runs/a/checkpoints/step-00000006
"$llmtool" export "$last" --output exported >export.txt

read_run() { PYTHONDONTWRITEBYTECODE=1 "$python" "$root/docs/read_run.py" "$@"; }
read_run runs/a | tee summary.txt
grep -q "^$last: step 6," summary.txt
grep -q '  transformer.h.1.mlp.c_fc.weight \[16, 64\]: rms .*, m .*, v ' summary.txt
grep -q '^metrics.h5: train: 4 rows of .*loss.*tokens_per_second' summary.txt
grep -q '^metrics.h5: validation: 2 rows' summary.txt
grep -q '^metrics.h5: ranks: 4 rows of .*step_seconds/median' summary.txt
read_run "$last" --tensor transformer.ln_f.weight >tensor.txt
grep -q '^v:' tensor.txt
read_run runs/a --compare exported
if read_run runs/a/checkpoints/step-00000003 --compare exported 2>control.txt; then
  echo "control: the parameters of step 3 were taken for those of step 6" && exit 1
fi
grep -q 'different: .*transformer.wte.weight' control.txt

"$python" -c 'import matplotlib, pandas' 2>/dev/null || {
  echo "left out: docs/analyse_runs.py (Debian: python3-pandas python3-matplotlib)" && exit 0
}
cp -r runs/a runs/b
sed -i 's/^name = a /name = b /; s/^learning_rate = .*/learning_rate = 1e-2 ; deck/; s/^seed = 42 /seed = 43 /; s/Lines/Words/' runs/b/deck.ini
analyse() { PYTHONDONTWRITEBYTECODE=1 "$python" "$root/docs/analyse_runs.py" "$@"; }
analyse curves runs/a runs/b --output curves.svg --columns train/loss,validation/loss,ranks/step_seconds/max
analyse seeds runs/a runs/b --output seeds.png | tee seeds.txt
grep -Eq '^schedule.learning_rate = 1e-2, log.sample_prompts = Line has .* train on, Words +1 ' seeds.txt
analyse parallel runs/a runs/b --output sweep.pdf | tee sweep.txt
grep -Eq '^ +schedule.learning_rate +log.sample_prompts +validation/loss$' sweep.txt # neither name nor seed
analyse spectra runs/a --match c_fc --output spectra.png | tee spectra.txt
[[ $(grep -c 'step-0000000[36] .*c_fc.weight' spectra.txt) == 4 ]]
[[ -s curves.svg && -s seeds.png && -s sweep.pdf && -s spectra.png ]]
if analyse curves runs/a --columns train/none --output none.png 2>control.txt; then
  echo "control: a column that is not there was drawn" && exit 1
fi
grep -q 'train has no column none, only .*grad_norm' control.txt

analyse parallel runs/a runs/b --output lowest.png | sed '$d' >lowest.txt
analyse parallel runs/a runs/b --highest --output highest.png | sed '$d' >highest.txt
if cmp -s lowest.txt highest.txt; then echo "control: the highest result is the lowest one" && exit 1; fi
