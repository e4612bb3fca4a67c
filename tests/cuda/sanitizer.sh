#!/usr/bin/env bash
# sanitizer.sh memcheck|racecheck model|tests COMMAND...: expects that compute-sanitizer finds no error in COMMAND on a
# GPU: an llmtrain that trains a small model, or a test program. Exit code 77: no GPU or no compute-sanitizer is here.
set -euo pipefail
tool=$1 what=$2
shift 2
skip() { echo "skipped: $tool ($*)" && exit 77; }
command=("$@")
if [[ $what == model ]]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  command+=("$(dirname "$(readlink -f "$0")")/small.ini" "run.output=$work/runs" "data.cache=$work/cache" run.max_steps=3
    run.overwrite=true)
  # Without the tool first, since it reports a missing GPU as an error of the program.
  code=0
  "${command[@]}" >"$work/alone.txt" 2>&1 || code=$?
  ((code != 69)) || skip "$(head -n 1 "$work/alone.txt")"
  ((code == 0)) || { cat "$work/alone.txt" && echo "without $tool: exit code $code" && exit 1; }
fi
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v compute-sanitizer >/dev/null || skip "compute-sanitizer is not here"
compute-sanitizer --tool "$tool" --error-exitcode 1 --target-processes all "${command[@]}"
