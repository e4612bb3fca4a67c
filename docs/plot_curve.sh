#!/usr/bin/env bash
# plot_curve.sh RUN_DIRECTORY OUTPUT.svg [OPTIMUM]: loss over steps from a run's metrics.jsonl, with gnuplot and jq.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: docs/plot_curve.sh RUN_DIRECTORY OUTPUT.svg [OPTIMUM]" >&2 && exit 64; }
metrics=$1/metrics.jsonl
[[ -r $metrics ]] || { echo "plot_curve: $metrics: not readable" >&2 && exit 66; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
jq -r 'select(.loss_mean) | "\(.step) \(.loss_mean)"' "$metrics" >"$folder/train"
jq -r 'select(.validation_loss) | "\(.step) \(.validation_loss)"' "$metrics" >"$folder/validation"
optimum=""
if [[ $# -ge 3 ]]; then optimum=", $3 with lines lw 2 dt 2 lc rgb '#666666' title 'known optimum'"; fi
gnuplot <<PLOT
set terminal svg size 800,420 font 'sans-serif,13' background rgb 'white'
set output '$2'
set logscale y
set xlabel 'optimizer steps'
set ylabel 'loss, nats per character'
set grid ytics lc rgb '#dddddd'
set key top right
plot '$folder/train' with lines lw 2 lc rgb '#3366aa' title 'training', \
     '$folder/validation' with linespoints pt 7 ps 0.6 lw 1 lc rgb '#cc4422' title 'validation'$optimum
PLOT
