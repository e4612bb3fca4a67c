#!/usr/bin/env bash
# Runs a command on a pretended processor with AMX (amx_emulator.cpp), and fails where no tile was multiplied meanwhile:
#
#   with_amx.sh EMULATOR FOLDER COMMAND...
#
#   FOLDER   of the copy of oneDNN that make_trapping_onednn.sh made
set -euo pipefail
emulator=$1
folder=$2
shift 2
counts=$(mktemp)
trap 'rm -f -- "$counts"' EXIT
status=0
LD_PRELOAD=$emulator LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LLMTRAIN_AMX_COUNTS=$counts "$@" ||
  status=$?
((status == 0)) || exit "$status"
[[ -s $counts ]] || {
  echo "with_amx.sh: no product of AMX's was computed: $*" >&2
  exit 1
}
tail -n 1 "$counts"
