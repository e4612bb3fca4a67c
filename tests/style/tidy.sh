#!/usr/bin/env bash
# tidy.sh ROOT BUILD_FOLDER changed|all: clang-tidy finds nothing, in the files changed since the commit that this work
# started from (LLMTRAIN_BASE; else the merge base with origin/main; else the previous commit), or in all. It checks as
# many of the changed files as LLMTRAIN_TIDY_SECONDS (120) allow, the program's before the tests'.
set -euo pipefail
cd "$1"
# Each version has different checks, and different results of the same ones.
readonly VERSION=14
found=$(clang-tidy --version | sed -nE 's/.*version ([0-9]+).*/\1/p' | head -1)
if [[ $found != "$VERSION" ]]; then
  echo "left out: the sources are held to what clang-tidy $VERSION finds, and this is $found"
  exit 77
fi
# Each file separately, since the build joins a layer's files.
build=$2/separate
cmake --preset host -B "$build" -DLLMTRAIN_JOIN=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
seconds=${LLMTRAIN_TIDY_SECONDS:-120}

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
  seconds=86400
else
  base=$(base_commit)
  names=$({
    git diff --name-only --diff-filter=d "$base" -- '*.cpp'
    git ls-files --others --exclude-standard -- '*.cpp'
  } | sort -u)
fi
files=()
for name in $names; do
  if in_build "$name"; then files+=("$name"); fi
done
if ((${#files[@]} == 0)); then
  echo "no file of this build was changed"
  exit 0
fi

# omp.h is in GCC's own folder; last in the search path, so that clang's other headers take precedence.
GCC_HEADERS=$(g++ -print-file-name=include)
BUILD=$build
DEADLINE=$(($(date +%s) + seconds))
export GCC_HEADERS BUILD DEADLINE
left_out=$(mktemp)
trap 'rm -f "$left_out"' EXIT
export left_out
# shellcheck disable=SC2016 # expanded by the inner shell
if ! printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c '
  if (($(date +%s) >= DEADLINE)); then echo "$1" >>"$left_out" && exit 0; fi
  output=$(clang-tidy --quiet -p "$BUILD" --warnings-as-errors="*" --extra-arg=-idirafter"$GCC_HEADERS" \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-ignored-optimization-argument "$1" 2>&1) && exit 0
  printf "%s\n" "$output" | grep -v "warnings generated"
  exit 1' tidy; then
  echo "clang-tidy has found the above"
  exit 1
fi
left=$(wc -l <"$left_out")
echo "$((${#files[@]} - left)) files are clean"
if ((left > 0)); then
  echo "not looked at, as time was up (tests/run.sh --all looks at all): $(tr '\n' ' ' <"$left_out")"
fi
