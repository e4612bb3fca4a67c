#!/usr/bin/env bash
# kernels_bench.sh PROGRAM: gpu_kernels_bench runs, on sizes of tests, and prints for each kernel what gpu_kernels.py
# parses.
set -euo pipefail
output=$("$1" small)
echo "$output"
for expected in attention=4 head=1 adamw=1 norm=1 embedding=1; do
  lines=$(grep -cE "^\{\"what\": \"${expected%=*}\", .*(forward|seconds)[a-z_]*\": [0-9.e+-]+.*\}\$" <<<"$output" || true)
  [[ $lines == "${expected#*=}" ]] || { echo "${expected%=*}: $lines lines, not ${expected#*=}" && exit 1; }
done
