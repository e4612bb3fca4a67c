#!/usr/bin/env bash
# tidy.sh ROOT BUILD_FOLDER changed|all: clang-tidy finds nothing, in the files changed since the commit that this work
# started from (LLMTRAIN_BASE; else where it left origin/main; else the commit before), or in all.
set -euo pipefail
cd "$1"
build=$2

in_build() { grep -qF "\"file\": \"$PWD/$1\"" "$build/compile_commands.json"; }

base_commit() {
  local candidate base
  for candidate in "${LLMTRAIN_BASE:-}" origin/main; do
    [[ -n $candidate ]] || continue
    base=$(git merge-base HEAD "$candidate" 2>/dev/null) || continue
    if [[ $base != $(git rev-parse HEAD) ]]; then
      printf '%s\n' "$base"
      return
    fi
  done
  git rev-parse --verify --quiet HEAD~1 || git hash-object -t tree /dev/null
}

if [[ $3 == all ]]; then
  names=$(git ls-files -- '*.cpp')
else
  base=$(base_commit)
  names=$( (git diff --name-only --diff-filter=d "$base" -- '*.cpp'; git ls-files --others --exclude-standard -- '*.cpp') | sort -u)
fi
files=()
for name in $names; do
  if in_build "$name"; then files+=("$name"); fi
done
if ((${#files[@]} == 0)); then
  echo "no file of this build was changed"
  exit 0
fi

# omp.h is in GCC's own folder; last in the search, so that clang's other headers win.
gcc_headers=$(g++ -print-file-name=include)
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" \
  clang-tidy --quiet -p "$build" --warnings-as-errors='*' --extra-arg=-idirafter"$gcc_headers" \
  --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument 2>/dev/null ||
  { echo "clang-tidy has found the above" && exit 1; }
echo "${#files[@]} files are clean"
