#!/usr/bin/env bash
# left_out.sh WHAT WHY: skips tests that need WHAT (cuda, cudnn), or fails if LLMTRAIN_REQUIRE lists it (tests/run.sh).
if [[ ,${LLMTRAIN_REQUIRE:-}, == *,$1,* ]]; then
  echo "failed: $2; LLMTRAIN_REQUIRE has $1"
  exit 1
fi
echo "skipped: $2"
exit 77
