#!/bin/sh
# job_ends.sh CODE COUNT MESSAGE SECONDS COMMAND...: runs the command and checks that it ends by itself with exit code
# CODE in less than SECONDS (124: it does not), that COUNT lines of its output contain MESSAGE, and that none of its
# processes is left 15 s later.
code=$1 count=$2 message=$3 seconds=$4
shift 4
output=$(mktemp) || exit 1
trap 'rm -f "$output"' EXIT
mark="JOB_ENDS_MARK=$$" # in the environment of all its processes
env "$mark" timeout -k 5 "$seconds" "$@" >"$output" 2>&1
got=$?
cat "$output"
if [ "$got" -ne "$code" ]; then
  echo "exit code $got instead of $code (124: not ended after $seconds s)"
  exit 1
fi
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
  left=$(grep -lsz "^$mark\$" /proc/[0-9]*/environ)
  [ -z "$left" ] && break
  [ "$i" -eq 16 ] && echo "left after 15 s: $left" && exit 1
  sleep 1
done
lines=$(grep -c -F -e "$message" "$output")
if [ "$lines" -ne "$count" ]; then
  echo "$lines lines instead of $count contain: $message"
  exit 1
fi
