#!/usr/bin/env bash
# presets.sh ROOT: every host preset configures and generates, including those that CI does not build.
set -euo pipefail
cd "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
while read -r preset; do
  case $preset in
    cuda) continue ;; # built by tests/run.sh if nvcc is installed
    host-fuzz) command -v clang++ >/dev/null || continue ;;
  esac
  if ! cmake --preset "$preset" -B "$folder/$preset" >"$folder/log" 2>&1; then
    echo "preset '$preset' does not configure:"
    cat "$folder/log"
    failed=1
  fi
done < <(cmake --list-presets=configure | sed -n 's/^ *"\([^"]*\)".*/\1/p')
exit "$failed"
