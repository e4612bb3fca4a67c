#!/usr/bin/env bash
# campaign.sh BUILD_DIR [NAME=COUNT ...]: runs all fault campaigns with their full counts (hours), or the given counts,
# and writes a table of the results to benchmarks/results/fault_campaigns.md. Exit code 1 when anything went wrong. On a busy machine,
# LLMTRAIN_FAULT_PATIENCE=10 makes all time limits ten times as long.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: tests/fault/campaign.sh BUILD_DIR [NAME=COUNT ...]" >&2 && exit 64; }
build=$(readlink -f "$1")
shift
cd "$(dirname "$(readlink -f "$0")")/../.."
document=benchmarks/results/fault_campaigns.md
cmake --build "$build" --target fault_campaign >/dev/null

export OMP_PROC_BIND=false OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_reachable=weighted OMPI_MCA_mpi_yield_when_idle=1
rows=$(mktemp)
trap 'rm -f "$rows" "$rows.document"' EXIT
names=(kills crash_points full_disks disk_errors bit_flips all_damaged slow_writer rank_faults no_memory
  stop_signals ended_by_launcher stopped_ranks slow_disks two_owners bad_numbers loss_spikes
  many_nodes replays)
declare -A counts=([kills]=200 [crash_points]=2 [full_disks]=50 [disk_errors]=200 [bit_flips]=10000 [all_damaged]=20
  [slow_writer]=30 [rank_faults]=10 [no_memory]=5000 [stop_signals]=50 [ended_by_launcher]=50 [stopped_ranks]=20
  [slow_disks]=10 [two_owners]=20 [bad_numbers]=100 [loss_spikes]=3 [many_nodes]=60 [replays]=50 [soak]=60)
for given in "$@"; do
  [[ $given == *=* && -n ${counts[${given%%=*}]:-} ]] || { echo "campaign.sh: no campaign '$given'" >&2 && exit 64; }
  counts[${given%%=*}]=${given#*=}
done
failed=0
for name in "${names[@]}"; do
  "$build/tests/fault/fault_campaign" "$name" "${counts[$name]}" "$rows" || failed=1
done
if ((counts[soak] > 0)); then # minutes
  tests/fault/soak.py "$build/llmtrain" "$build/llmtool" --minutes "${counts[soak]}" --table "$rows" || failed=1
fi

# Between the two marks of the document.
{
  sed '/<!-- results -->/q' "$document"
  printf '\n%s cores, %s, llmtrain at %s:\n\n' "$(nproc)" "$(mpirun --version | head -n 1)" \
    "$(git describe --always --dirty 2>/dev/null || echo unknown)"
  echo '| What happens | Tried | Wrong | What was seen | Time |'
  echo '|---|---|---|---|---|'
  cat "$rows"
  echo
  sed -n '/<!-- end of results -->/,$p' "$document"
} >"$rows.document"
cat "$rows.document" >"$document"
exit "$failed"
