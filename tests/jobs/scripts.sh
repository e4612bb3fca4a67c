#!/usr/bin/env bash
# scripts.sh ROOT: decisions of the scripts of jobs/, without Slurm: small scripts that record their calls replace srun,
# sbatch, scontrol and llmtrain.
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" && exit 1; }

mkdir bin
export PATH=$work/bin:$PATH JOBS=$root/jobs
play() { # play NAME; its text comes on standard input
  { echo '#!/usr/bin/env bash' && cat; } >"bin/$1"
  chmod +x "bin/$1"
}
# A step: ends with EXIT_CODE, after a checkpoint if SAVES names one; with WAITS it continues until it gets a signal.
play srun <<'END'
printf '%s\n' "OMP_NUM_THREADS=$OMP_NUM_THREADS" "$@" >srun.txt
echo life >>lives.txt
if [[ -n ${WAITS:-} ]]; then
  got=0
  trap 'got=$((got + 1))' USR1
  touch waiting
  for ((i = 0; i < 600 && got < WAITS; ++i)); do sleep 0.1; done
  ((got == WAITS)) || exit 70
fi
if [[ -n ${SAVES:-} ]]; then mkdir -p "runs/a b/checkpoints/$SAVES"; fi
exit "${EXIT_CODE:-0}"
END
play llmtrain <<'END'
[[ ${*: -1} == --check ]] || exit 70
if [[ -n ${NO_DECK:-} ]]; then exit 78; fi
printf '%s\n' '[model]' 'name = wrong' '[run]' 'name = a b ; deck' 'output = runs    ; default' '[data]' 'output = wrong'
END
play scontrol <<'END'
if [[ $1 == show ]]; then printf '   Command=%s/array.sbatch x.ini\n' "$JOBS" "$JOBS" && exit; fi
echo "$@" >>requeued.txt
exit "${SCONTROL_FAILS:-0}"
END
play sbatch <<'END'
echo "MAY_REQUEUE=$MAY_REQUEUE $*" >>submitted.txt
echo "$((100 + $(wc -l <submitted.txt)));cluster"
END

# One start of job JOB; sets `code` to its exit code.
life() { # life JOB START NAME=value...
  local job=$1 restarts=$2
  shift 2
  if ((restarts == 0)); then rm -f requeued.txt lives.txt; fi
  code=0
  env SLURM_JOB_ID="$job" SLURM_RESTART_COUNT="$restarts" SLURM_CPUS_PER_TASK=3 "$@" \
    bash "$root/jobs/train.sbatch" 'my deck.ini' run.name=a >out.txt 2>&1 || code=$?
}
expect_requeued() { # expect_requeued JOB COUNT
  [[ $code == 0 ]] || fail "requeued, but the exit code is $code: $(cat out.txt)"
  [[ $(cat requeued.txt) == "$(for ((n = 0; n < $2; ++n)); do echo "requeue $1"; done)" ]] || fail "$(cat requeued.txt)"
}
expect_end() { # expect_end CODE RESTARTS
  [[ $code == "$1" ]] || fail "exit code $code instead of $1: $(cat out.txt)"
  touch requeued.txt
  [[ $(wc -l <requeued.txt) == "$2" ]] || fail "exit code $1: requeued $(cat requeued.txt)"
}

# Final errors and errors that lead to a restart.
for final in 0 64 65 66 69 70 73 74 78 79; do
  life 1 0 EXIT_CODE="$final"
  expect_end "$final" 0
  [[ ! -e runs ]] || fail "exit code $final: left something behind"
done
for lost in 75 76 14 1 134 137 139 143; do
  life 2 0 EXIT_CODE="$lost"
  expect_requeued 2 1
done
life 3 0 EXIT_CODE=75 SCONTROL_FAILS=1
expect_end 75 1
rm -r runs
life 4 0 EXIT_CODE=75 MAY_REQUEUE=no # a chain's job
expect_end 75 0
grep -qxF 'train.sbatch: exit code 75, not requeued (exit code 75)' out.txt || fail "$(cat out.txt)"
[[ ! -e 'runs/a b/requeued' ]] || fail "a reason of a requeue that was none"

# Start of the step.
for argument in OMP_NUM_THREADS=3 --kill-on-bad-exit=1 --cpus-per-task=3 --cpu-bind=cores llmtrain 'my deck.ini' run.name=a; do
  grep -qxF -- "$argument" srun.txt || fail "srun without '$argument'"
done
! grep -q -e --bcast srun.txt || fail 'srun sends the program to few nodes'
life 5 0 EXIT_CODE=0 SLURM_JOB_NUM_NODES=16
for argument in --bcast=/tmp/llmtrain-5 --send-libs=yes llmtrain; do
  grep -qxF -- "$argument" srun.txt || fail "srun on many nodes without '$argument'"
done
life 5 0 EXIT_CODE=0 SLURM_JOB_NUM_NODES=16 BCAST_NODES=0
! grep -q -e --bcast srun.txt || fail 'srun sends the program although BCAST_NODES is 0'
for script in train array; do
  for option in --requeue --open-mode=append --signal=USR1@; do
    grep -q "^#SBATCH $option" "$root/jobs/$script.sbatch" || fail "$script.sbatch without $option"
  done
done

# Faults without a new checkpoint: this many restarts, then the run's exit code.
for ((n = 0; n < 3; ++n)); do
  life 5 "$n" EXIT_CODE=139
  expect_requeued 5 $((n + 1))
done
life 5 3 EXIT_CODE=139
expect_end 139 3
grep -q '3 restarts without a new checkpoint: not requeued (exit code 139)' out.txt || fail "$(cat out.txt)"
[[ $(wc -l <lives.txt) == 4 ]] || fail "not four lives"
# A new submission has the same number again.
life 6 0 EXIT_CODE=139
expect_requeued 6 1
# A new checkpoint resets the count.
plan=('' '' step-00000002 '' '' step-00000003 '' '' '')
for n in "${!plan[@]}"; do
  life 7 "$n" EXIT_CODE=76 SAVES="${plan[n]}"
  if ((n < 8)); then expect_requeued 7 $((n + 1)); else expect_end 76 8; fi
done
# If checkpoints are unknown all restarts count.
rm -r runs
for ((n = 0; n < 4; ++n)); do
  life 8 "$n" EXIT_CODE=75 NO_DECK=1
  if ((n < 3)); then expect_requeued 8 $((n + 1)); else expect_end 75 3; fi
done
[[ ! -e runs && ! -e /restarts ]] || fail "without a folder something was written"
# If restarts cannot be counted there are none.
echo >runs
life 9 0 EXIT_CODE=139
expect_end 139 0
rm runs

# USR1 to the script goes to the step, each time, and the step's exit code counts.
rm -f waiting lives.txt requeued.txt
SLURM_JOB_ID=10 EXIT_CODE=75 SAVES=step-00000001 WAITS=2 bash "$root/jobs/train.sbatch" deck.ini >out.txt 2>&1 &
script=$!
for ((i = 0; i < 600; ++i)); do [[ ! -e waiting ]] || break && sleep 0.1; done
kill -USR1 "$script"
sleep 0.5
kill -USR1 "$script"
code=0
wait "$script" || code=$?
expect_requeued 10 1

# Arrays: decks or seeds, common settings.
array() { # array INDEX ARGUMENT...: prints llmtrain's arguments
  local index=$1
  shift
  SLURM_JOB_ID=11 SLURM_ARRAY_TASK_ID=$index bash "$root/jobs/array.sbatch" "$@"
  sed '1,/^llmtrain$/d' srun.txt | tr '\n' ' '
}
[[ $(array 0 x.ini y.ini run.output=o) == 'x.ini run.output=o ' ]] || fail "the first deck: $(cat srun.txt)"
[[ $(array 1 x.ini run.output=o y.ini) == 'y.ini run.output=o ' ]] || fail "the second deck: $(cat srun.txt)"
[[ $(array 3 d/x.ini) == 'd/x.ini run.seed=45 run.name=x-45 ' ]] || fail "the fourth seed: $(cat srun.txt)"
code=0
array 2 x.ini y.ini >out.txt 2>&1 || code=$?
grep -q 'no deck number 2' out.txt || fail "a third of two decks: $code, $(cat out.txt)"

# Chains: each job depends on the previous one, none is requeued.
OPTIONS="--time=1 --nodes=4" "$root/jobs/chain.sh" 3 x.ini run.overwrite=true run.name=a >out.txt
for ((n = 0; n < 3; ++n)); do
  echo "MAY_REQUEUE=no --parsable --export=ALL --no-requeue --time=1 --nodes=4$( ((n == 0)) ||
    echo " --dependency=afterany:$((100 + n))") $root/jobs/train.sbatch x.ini $( ((n == 0)) && echo run.overwrite=true run.name=a || echo run.name=a run.overwrite=false)"
done >expected.txt
cmp expected.txt submitted.txt || fail "$(cat submitted.txt)"

# In the foreground.
NODES=2 TASKS=4 CORES=5 OPTIONS="--partition=debug --account=mine" "$root/jobs/interactive.sh" x.ini run.name=a
for argument in OMP_NUM_THREADS=5 --nodes=2 --ntasks-per-node=4 --cpus-per-task=5 --partition=debug --account=mine x.ini \
  run.name=a; do
  grep -qxF -- "$argument" srun.txt || fail "interactive.sh: srun without '$argument'"
done

# GPUs: Slurm's copy of the script finds train.sbatch in the installed folder or where it was submitted.
mkdir spool empty
cp "$root/jobs/train_gpu.sbatch" spool/slurm_script
gpu() { # gpu NAME=value...
  rm -f srun.txt requeued.txt lives.txt
  code=0
  env SLURM_JOB_ID=9 SLURM_CPUS_PER_TASK=3 "$@" bash spool/slurm_script x.ini run.name=a >out.txt 2>&1 || code=$?
}
for place in LLMTRAIN_SHARE SLURM_SUBMIT_DIR; do
  gpu "$place=$root" EXIT_CODE=78
  [[ $code == 78 && $(tail -n 2 srun.txt | tr '\n' ' ') == 'x.ini run.name=a ' ]] || fail "$place: $code, $(cat out.txt)"
done
gpu SLURM_SUBMIT_DIR="$work/empty"
[[ $code == 66 && ! -e srun.txt ]] || fail "without train.sbatch: $code, $(cat out.txt)"

for script in train.sbatch train_gpu.sbatch array.sbatch chain.sh interactive.sh; do
  code=0
  bash "$root/jobs/$script" 2>out.txt || code=$?
  [[ $code == 64 && $(cat out.txt) == 'usage: '* ]] || fail "$script without arguments: $code, $(cat out.txt)"
done
echo "the scripts decide as they should"
