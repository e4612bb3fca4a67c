#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests; ends with CTest's summary.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/run.sh [--all] [--yes]

Installs what is missing (cmake/install_dependencies.sh), builds the host configuration in build/host, the GPU program on
emulated GPUs in build/emulated and, where nvcc is found, the CUDA one in build/cuda, and runs their tests. Ends with
CTest's summary, the skipped cases and the tests that took longest.

  --all   also: the tests labelled long (whole runs on emulated GPUs, emulated AMX, the largest decks, packages, presets,
          Arm), all GPU architectures instead of one, builds with the address, undefined behaviour and thread sanitizers
          and their tests, clang-tidy over everything, and the long campaigns (tests/*/campaign.sh)
  --yes   for the installer on Debian 12: do not ask

LLMTRAIN_DATA may name a folder with real data; tests that need it are skipped where it is not set.
LLMTRAIN_REQUIRE may name requirements, as a list (cuda,cudnn,no_warnings). cuda: without nvcc nothing is installed or
built. cudnn: that, and the tests of cuDNN's attention that need no GPU fail where they would be skipped. no_warnings:
the compiler's warnings are errors.

Exit codes: 0 all passed, 1 something failed, 64 command line or LLMTRAIN_REQUIRE, 69 no nvcc, which that names; the
installer's where it fails.
TEXT
}

all=false
installer_options=(--developer)
for argument in "$@"; do
  case $argument in
    --all) all=true ;;
    --yes) installer_options+=(--yes) ;;
    -h | --help) usage && exit 0 ;;
    *) echo "tests/run.sh: unknown option '$argument' (--help lists them)" >&2 && exit 64 ;;
  esac
done

cd "$(dirname "$(readlink -f "$0")")/.."
root=$PWD
cores=$(nproc)

# Looks where CMake does.
nvcc_is_here() {
  command -v "${CUDACXX:-nvcc}" >/dev/null || [[ -z ${CUDACXX:-} && -x /usr/local/cuda/bin/nvcc ]]
}
warnings=OFF
IFS=, read -ra required <<<"${LLMTRAIN_REQUIRE:-}"
for name in "${required[@]}"; do
  case $name in
    cuda | cudnn) ;;
    no_warnings) warnings=ON && continue ;;
    *) echo "tests/run.sh: LLMTRAIN_REQUIRE has '$name': it is a list of cuda, cudnn and no_warnings, with commas" >&2 && exit 64 ;;
  esac
  nvcc_is_here || { echo "tests/run.sh: LLMTRAIN_REQUIRE has $name, and there is no nvcc (${CUDACXX:-PATH, /usr/local/cuda/bin})" >&2 && exit 69; }
done

step() { printf '\n== %s (%d min %02d s so far)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

build() { # preset, options of CMake
  local preset=$1
  shift
  step "building $preset in build/$preset"
  cmake --preset "$preset" -DLLMTRAIN_WERROR="$warnings" "$@"
  cmake --build --preset "$preset" --parallel "$cores"
}

# A test's PROCESSORS are halves of a core: one thread that computes, or two that mostly wait for each other, fill a core.
test_folder() { # build folder
  local choice=()
  if ! $all; then choice=(-LE '^long$'); fi
  ctest --test-dir "$1" --parallel $((2 * cores)) "${choice[@]}" --output-on-failure --no-tests=error
}

print_skipped() { # what LLMTRAIN_SKIPPED_TESTS has
  [[ -s $1 ]] || return 0
  printf '\nSkipped cases (also of suites that passed):\n'
  sort -u "$1" | sed 's/^/  /'
}

# CTest's own record has "name runs seconds" a line.
print_dearest() { # build folder
  printf '\nThe 30 tests that took longest, seconds:\n'
  sed '/^---/,$d' "$1/Testing/Temporary/CTestCostData.txt" | awk '{ printf "%8.1f  %s\n", $NF, $1 }' | sort -rn | sed -n 1,30p
}

step "installing"
status=0
cmake/install_dependencies.sh "${installer_options[@]}" || status=$?
if ((status == 69)); then
  echo "tests/run.sh: the build says what is missing, if anything is"
elif ((status != 0)); then
  exit "$status"
fi

if [[ -n ${LLMTRAIN_DATA:-} ]]; then
  LLMTRAIN_DATA=$(readlink -f "$LLMTRAIN_DATA")
  export LLMTRAIN_DATA
  echo "tests/run.sh: data from $LLMTRAIN_DATA"
else
  echo "tests/run.sh: LLMTRAIN_DATA is not set: tests on real data are skipped"
fi

failed=()
if $all; then
  for preset in host-asan host-tsan; do
    build "$preset"
    step "tests of $preset"
    test_folder "build/$preset" || failed+=("tests of $preset")
  done
fi

build host
build emulated
builds=(host emulated)
if [[ -n ${CUDACXX:-} ]] || nvcc_is_here; then
  if $all; then build cuda -UCMAKE_CUDA_ARCHITECTURES; else build cuda -DCMAKE_CUDA_ARCHITECTURES=90; fi
  builds+=(cuda)
else
  echo "tests/run.sh: left out: the CUDA build and its tests (no nvcc here)"
fi

if $all; then
  step "clang-tidy over everything"
  tests/style/tidy.sh "$root" "$root/build/host" all || (($? == 77)) || failed+=("clang-tidy")
  for campaign in tests/*/campaign.sh; do
    [[ -x $campaign ]] || continue
    step "$campaign"
    "$campaign" "$root/build/host" || failed+=("$campaign")
  done
fi

# Folders of launchers that were killed. One of the same process number would not start.
for folder in "${TMPDIR:-/tmp}"/prterun.*.*.*; do
  number=${folder%.*} number=${number##*.}
  if [[ -O $folder && ! -d /proc/$number ]]; then rm -rf "$folder"; fi
done

# One CTest over all builds, so that there is one summary.
mkdir -p build/all
for name in "${builds[@]}"; do printf 'subdirs("%s")\n' "../$name"; done >build/all/CTestTestfile.cmake
if ((${#failed[@]} > 0)); then
  printf '\ntests/run.sh: FAILED:'
  printf ' [%s]' "${failed[@]}"
  printf '\n'
fi
step "tests of ${builds[*]}"
export LLMTRAIN_SKIPPED_TESTS=$root/build/all/skipped.txt
rm -rf "$LLMTRAIN_SKIPPED_TESTS" build/all/Testing/Temporary/CTestCostData.txt
test_folder build/all || failed+=("tests")
print_skipped "$LLMTRAIN_SKIPPED_TESTS"
print_dearest build/all
exit $((${#failed[@]} > 0))
