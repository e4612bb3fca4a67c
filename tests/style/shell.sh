#!/usr/bin/env bash
# shell.sh ROOT: shellcheck finds nothing in the project's scripts.
set -euo pipefail
# shellcheck source=tests/style/files.sh
. "$(dirname "$(readlink -f "$0")")/files.sh"
cd "$1"
files_of '*.sh' .ci/run
shellcheck -x "${files[@]}"
echo "${#files[@]} scripts are clean"
