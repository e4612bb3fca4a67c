#!/usr/bin/env bash
# Runs a command on an emulated processor with AMX (amx_emulator.cpp), and fails if it multiplies no tile. The emulator
# only handles instructions on tiles that the processor rejects, so that the command is skipped on processors without
# AVX-512 with bf16, and on those that have AMX, where every test runs its kernels:
#
#   with_amx.sh EMULATOR FOLDER COMMAND...
#
#   FOLDER   of the copy of oneDNN that make_trapping_onednn.sh made
#
# LLMTRAIN_TEST_CPUINFO names a file to read in place of /proc/cpuinfo. Exit code 77: skipped.
set -euo pipefail
emulator=$1
folder=$2
shift 2
cpuinfo=${LLMTRAIN_TEST_CPUINFO:-/proc/cpuinfo}
for flag in avx512f avx512bw avx512vl avx512_bf16; do
  if ! grep -qwm1 "$flag" "$cpuinfo"; then
    echo "skipped: AMX is emulated on processors with AVX-512 and bf16 only, and this one has no $flag"
    exit 77
  fi
done
if grep -qwm1 amx_tile "$cpuinfo"; then
  echo "skipped: this processor has AMX, and every test runs its kernels"
  exit 77
fi
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
