#!/usr/bin/env bash
# shell.sh ROOT: shellcheck finds nothing in the project's scripts.
set -euo pipefail
cd "$1"
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.sh' .ci/run |
  while read -r file; do if [[ -f $file ]]; then echo "$file"; fi; done)
((${#files[@]} > 0)) || { echo "git names no scripts here" && exit 1; }
shellcheck "${files[@]}"
echo "${#files[@]} scripts are clean"
