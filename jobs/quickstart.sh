#!/usr/bin/env bash
# Trains a language model from scratch: installs missing packages, builds, and trains inputs/quickstart.ini.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: jobs/quickstart.sh [--yes] [--finetune] [TEXT_FILE...] [section.key=value...]

Installs what is missing, builds llmtrain in build/host and trains inputs/quickstart.ini with 2 ranks on all cores of
this machine, in a few minutes: on the example corpus, whose best possible loss is known, or on your own text files
(UTF-8; a blank line ends a document). Run again, it rebuilds nothing and reports the finished run.

  --yes               for the installer on Debian 12: do not ask
  --finetune          then teach the model to answer questions about its stories (inputs/sft.ini), and show its answers
                      before and after
  section.key=value   changes the deck, as on llmtrain's command line: run.name=second schedule.learning_rate=1e-3

Exit codes: llmtrain's (0 finished, 78 the deck ...), the installer's,
66 a text file is missing, 70 the build failed.
TEXT
}

fail() {
  local code=$1
  shift
  printf 'quickstart: %s\n' "$*" >&2
  exit "$code"
}

root=$(dirname "$(dirname "$(readlink -f "$0")")")
installer_options=()
finetune=false
texts=()
settings=()
run_name=quickstart
for argument in "$@"; do
  case $argument in
    -h | --help) usage && exit 0 ;;
    --yes | -y) installer_options+=(--yes) ;;
    --finetune) finetune=true ;;
    -*) fail 64 "unknown option '$argument' (--help lists them)" ;;
    *)
      if [[ ! -e $argument && $argument =~ ^[a-z_]+\.[a-z_0-9]+= ]]; then
        settings+=("$argument")
      else
        [[ -r $argument && ! -d $argument ]] || fail 66 "$argument: no such readable file"
        text=$(readlink -f "$argument")
        [[ ! $text =~ [,\\$]|:[0-9.]+$ ]] ||
          fail 66 "$text: commas, backslashes, \$ and a number after a colon mean something in a deck: give it another name"
        texts+=("$text")
      fi
      ;;
  esac
done

arguments=()
if ((${#texts[@]} > 0)); then
  # Runs of different texts have different names.
  first=$(basename "${texts[0]%.*}")
  run_name=quickstart-$(printf '%s' "$first" | LC_ALL=C tr -c 'A-Za-z0-9._-' '-')
  if ((${#texts[@]} > 1)); then run_name+=-and-$((${#texts[@]} - 1))-more; fi
  list=$(printf '%s,' "${texts[@]}")
  arguments+=("data.train=${list%,}" "run.name=$run_name")
fi
for setting in "${settings[@]}"; do
  case $setting in run.name=*) run_name=${setting#*=} ;; esac
done
# the last run.name counts
filtered=()
for argument in "${arguments[@]}"; do
  if [[ $argument == run.name=* && " ${settings[*]} " == *" run.name="* ]]; then continue; fi
  filtered+=("$argument")
done
arguments=("${filtered[@]}" "${settings[@]}")

cd "$root"
status=0
cmake/install_dependencies.sh "${installer_options[@]}" || status=$?
if ((status != 0 && status != 69)); then exit "$status"; fi # 69: not Debian; the build reports what is missing

cores=$(nproc)
if [[ ! -f build/host/build.ninja ]]; then
  echo "quickstart: configuring build/host"
  configured=$(cmake --preset host 2>&1) || fail 70 "the configuration failed:"$'\n'"$configured"
fi
echo "quickstart: building llmtrain and llmtool in build/host (some minutes the first time)"
cmake --build --preset host --parallel "$cores" --target llmtrain llmtool || fail 70 "the build failed"

ranks=2
threads=$((cores / ranks > 0 ? cores / ranks : 1))
export OMP_NUM_THREADS=$threads
# Threads of ranks that share few cores must not spin; unbound, they use all cores.
export OMP_PROC_BIND=${OMP_PROC_BIND:-false}
export HOME=${HOME:-/tmp}                       # Open MPI does not start without it
export OMPI_MCA_reachable=weighted              # no warning about this machine's own addresses
export UCX_HANDLE_ERRORS=${UCX_HANDLE_ERRORS:-none} # no backtraces of a library that is only loaded
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

command=(mpirun -n "$ranks" --bind-to none --oversubscribe build/host/llmtrain inputs/quickstart.ini "${arguments[@]}")
printf 'quickstart: OMP_NUM_THREADS=%d' "$threads"
printf ' %q' "${command[@]}"
printf '\n\n'
status=0
"${command[@]}" </dev/null || status=$?

# Prints what a model answers to the first questions of a file of rows.
show_answers() { # title, model, file of rows
  printf '\n%s\n' "$1"
  local row prompt
  while IFS= read -r row; do
    prompt=$(sed -E 's/^\{"prompt":"(.*)","completion":.*$/\1/; s/\\"/"/g' <<<"$row")
    prompt=$(printf '%b.' "$prompt")
    printf '  %s' "$(sed -n '$p' <<<"${prompt%.}")"
    build/host/llmtool generate --model "$2" --prompt "${prompt%.}" --max-new-tokens 30 --greedy | tr '\n' ' '
    printf '\n'
  done < <(sed -n '1p;3p;5p;8p;11p' "$3")
}

teach() {
  local model=runs/$run_name/export rows=runs/questions.jsonl asked=runs/asked.jsonl
  build/host/llmtool export "runs/$run_name" --output "$model" --force || return
  build/host/llmtool corpus questions --bytes 2M --seed 11 --output "$rows" --force || return
  build/host/llmtool corpus questions --bytes 6K --seed 12 --output "$asked" --force || return
  local command=(mpirun -n "$ranks" --bind-to none --oversubscribe build/host/llmtrain inputs/sft.ini
    model.path="$model" data.train="$rows" run.name="$run_name-sft" run.overwrite=true)
  printf 'quickstart:'
  printf ' %q' "${command[@]}"
  printf '\n\n'
  "${command[@]}" </dev/null || return
  show_answers "Questions about stories that neither model has seen, and what the quickstart's model writes:" "$model" "$asked"
  show_answers "What the fine-tuned model answers:" "runs/$run_name-sft/export" "$asked"
}

if $finetune && ((status == 0)); then
  teach || status=$?
fi

case $status in
  0)
    again=
    for argument in "${texts[@]}" "${settings[@]}"; do
      [[ $argument == run.overwrite=* ]] || again+=$(printf ' %q' "$argument")
    done
    cat <<TEXT

Results: $root/runs/$run_name
  log.txt (this output), metrics.jsonl and metrics.h5 (curves), ledger.jsonl (every step, bit for bit), deck.ini
Next:
  another run beside it            jobs/quickstart.sh run.name=second schedule.learning_rate=1e-3
  the same again from the start    jobs/quickstart.sh$again run.overwrite=true
  your own text                    jobs/quickstart.sh my_text.txt
  teach it to answer questions     jobs/quickstart.sh$again --finetune
TEXT
    ;;
  *) printf '\nquickstart: llmtrain ended with exit code %d\n' "$status" >&2 ;;
esac
exit "$status"
