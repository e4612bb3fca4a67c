#!/usr/bin/env bash
# avx512.sh BUILD_FOLDER: only objects of x_avx512.cpp contain AVX-512 instructions, and none of their functions can
# replace others at link time: the program runs on processors without it.
set -euo pipefail
cd "$1"
if ! command -v objdump >/dev/null; then
  echo "left out: objdump is not here"
  exit 77
fi
mapfile -t wide < <(find CMakeFiles -name '*_avx512.cpp.o' | sort)
mapfile -t others < <(find CMakeFiles -path '*/llmtrain*.dir/*.cpp.o' ! -name '*_avx512.cpp.o' | sort)
((${#wide[@]} > 0 && ${#others[@]} > 0)) || { echo "no objects in $1" && exit 1; }

# 512-bit registers, registers that only AVX-512 has, and its masks.
registers='%zmm|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'
export registers
# shellcheck disable=SC2016 # expanded by the inner shell
with_registers() {
  printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c \
    'if objdump -d --no-show-raw-insn "$1" | grep -qE -- "$registers"; then echo "$1"; fi' object {}
}
[[ $(with_registers "${wide[@]}" | wc -l) == "${#wide[@]}" ]] || { echo "an object of AVX-512 has none of it" && exit 1; }
found=$(with_registers "${others[@]}")

# Functions that several objects may define, of which the linker keeps one.
weak() { nm --defined-only "$@" | awk '$2 ~ /^[WVu]$/ { print $3 }' | sort -u; }
shared=$(comm -12 <(weak "${wide[@]}") <(weak "${others[@]}"))
if [[ -n $found$shared ]]; then
  printf 'instructions of AVX-512 outside of x_avx512.cpp:\n%s\n' "$found"
  printf 'functions of x_avx512.cpp that others define, too:\n%s\n' "$(c++filt <<<"$shared")"
  exit 1
fi
echo "${#others[@]} objects have no AVX-512, ${#wide[@]} have"
