#!/usr/bin/env bash
# quickstart.sh ROOT: errors that jobs/quickstart.sh reports before it installs or builds anything.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

expect() { # expect CODE WORD ARGUMENT...
  local code=$1 word=$2 got=0 output
  shift 2
  output=$("$root/jobs/quickstart.sh" "$@" 2>&1 </dev/null) || got=$?
  [[ $got == "$code" && $output == *"$word"* ]] ||
    { printf 'quickstart.sh %s: exit code %d, expected %d and "%s":\n%s\n' "$*" "$got" "$code" "$word" "$output" && exit 1; }
}

root=$1
expect 0 'usage: jobs/quickstart.sh' --help
expect 64 "unknown option '--nonsense'" --nonsense
expect 66 'missing.txt: no such readable file' missing.txt
for name in 'a,b.txt' 'back\slash.txt' 'd$.txt' 'story:2'; do
  touch "$name"
  expect 66 'give it another name' "$name"
done
expect 66 'no such readable file' "$work"
echo "quickstart.sh refuses what it should"
