#!/bin/sh
# job_ends.sh CODE COUNT MESSAGE SECONDS COMMAND...: runs the command and checks that it ends by itself with exit code
# CODE in less than SECONDS, and that COUNT lines of its output contain MESSAGE.
code=$1 count=$2 message=$3 seconds=$4
shift 4
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
timeout -k 5 "$seconds" "$@" >"$output" 2>&1
got=$?
cat "$output"
if [ "$got" -ne "$code" ]; then
  echo "exit code $got instead of $code (124: not ended after $seconds s)"
  exit 1
fi
lines=$(grep -c -F -e "$message" "$output")
if [ "$lines" -ne "$count" ]; then
  echo "$lines lines instead of $count contain: $message"
  exit 1
fi
