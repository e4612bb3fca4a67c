#!/usr/bin/env bash
# with_python.sh SCRIPT ARGUMENT...: runs a script of this folder; skipped where no python3 starts.
set -euo pipefail
if ! python3 -c '' 2>/dev/null; then
  echo "skipped: python3 does not start"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$(dirname "$(readlink -f "$0")")/$1" "${@:2}"
