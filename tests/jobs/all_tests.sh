#!/usr/bin/env bash
# all_tests.sh ROOT: checks the handling of LLMTRAIN_REQUIRE in tests/run.sh before it installs anything. It runs in a
# tree whose installer is a stub that ends it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tests" "$work/cmake"
cp "$1/tests/run.sh" "$work/tests"
printf '#!/bin/sh\nexit 93\n' >"$work/cmake/install_dependencies.sh"
printf '#!/bin/sh\n' >"$work/nvcc"
chmod +x "$work/cmake/install_dependencies.sh" "$work/nvcc"
cases=0

expect() { # expect CODE WORDS LLMTRAIN_REQUIRE CUDACXX
  local code=0 output
  output=$(LLMTRAIN_REQUIRE=$3 CUDACXX=$4 "$work/tests/run.sh" 2>&1) || code=$?
  [[ $code == "$1" && $output == *"$2"* ]] || { echo "'$3' with '$4' gave $code, not $1 and '$2': $output" && exit 1; }
  cases=$((cases + 1))
}
expect 93 '== installing' '' "$work/nowhere"
expect 69 'LLMTRAIN_REQUIRE has cuda, and there is no nvcc' cuda "$work/nowhere"
expect 69 'LLMTRAIN_REQUIRE has cudnn, and there is no nvcc' cudnn "$work/nowhere"
expect 93 '== installing' cuda,cudnn "$work/nvcc"
expect 64 "LLMTRAIN_REQUIRE has 'cuDNN'" cuda,cuDNN "$work/nvcc"
expect 64 "LLMTRAIN_REQUIRE has ' cudnn'" 'cuda, cudnn' "$work/nvcc"
echo "$cases cases"
