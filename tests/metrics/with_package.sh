#!/usr/bin/env bash
# with_package.sh PACKAGE SCRIPT ARGUMENT...: runs a script of this folder with a python3 that has the package; skipped
# where there is none.
set -euo pipefail
package=$1 script=$2
shift 2
for python in "${LLMTRAIN_PYTHON:-python3}" python3 /usr/bin/python3; do
  if "$python" -c "import $package" 2>/dev/null; then
    exec env PYTHONDONTWRITEBYTECODE=1 "$python" "$(dirname "$(readlink -f "$0")")/$script" "$@"
  fi
done
echo "skipped: no python3 with $package (LLMTRAIN_PYTHON=... names one that has it)"
exit 77
