#!/bin/sh
# score_length.sh MODE: a program of rewards.functions = command:, as tests need it. For each line it writes the number of
# its bytes; MODE is a way to go wrong after the first line: end, hang, rubbish, twice, long, object (correct),
# early (writes before it is asked), stuck (never reads), leave (ends, but something that it started holds its output),
# detach (correct, and the same), or say TEXT.
case $1 in
  early) echo 1 ;;
  stuck) exec sleep 600 ;;
esac
while IFS= read -r line; do
  case $1 in
    end) exit 3 ;;
    leave) setsid sleep 20 & exit 3 ;;
    detach) setsid sleep 20 & echo 1 ;;
    hang) sleep 600 ;;
    rubbish) echo "scored: fine" ;;
    say) printf '%s\n' "$2" ;;
    twice) echo 1 && echo 2 ;;
    long) head -c 100000 /dev/zero | tr '\0' 1 ;;
    object) echo "{\"reward\": ${#line}, \"comment\": \"its length\"}" ;;
    *) echo "${#line}" ;;
  esac
done
