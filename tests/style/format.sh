#!/usr/bin/env bash
# format.sh ROOT: clang-format would change nothing. Other versions than the one named in .clang-format break lines
# elsewhere in a few places: where only they are installed, nothing can be said.
set -euo pipefail
cd "$1"
version=$(sed -n -E 's/^# clang-format ([0-9]+)$/\1/p' .clang-format)
program=clang-format-$version
if ! command -v "$program" >/dev/null; then
  echo "skipped: these sources are formatted by clang-format $version, which is not installed"
  exit 77
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp' '*.cu' '*.cuh' |
  while read -r file; do if [[ -f $file ]]; then echo "$file"; fi; done)
((${#files[@]} > 0)) || { echo "git names no sources here" && exit 1; }
if ! "$program" --dry-run --Werror "${files[@]}"; then
  echo "mend it: $program -i <file>"
  exit 1
fi
echo "${#files[@]} files are formatted"
