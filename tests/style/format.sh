#!/usr/bin/env bash
# format.sh ROOT: clang-format would change nothing. Versions other than the one named in .clang-format break some lines
# differently: if only they are installed, the test is skipped.
set -euo pipefail
# shellcheck source=tests/style/files.sh
. "$(dirname "$(readlink -f "$0")")/files.sh"
cd "$1"
version=$(sed -n -E 's/^# clang-format ([0-9]+)$/\1/p' .clang-format)
program=clang-format-$version
if ! command -v "$program" >/dev/null; then
  echo "skipped: these sources are formatted by clang-format $version, which is not installed"
  exit 77
fi
files_of '*.cpp' '*.hpp' '*.cu' '*.cuh'
if ! "$program" --dry-run --Werror "${files[@]}"; then
  echo "mend it: $program -i <file>"
  exit 1
fi
echo "${#files[@]} files are formatted"
