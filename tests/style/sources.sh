#!/usr/bin/env bash
# sources.sh ROOT: every source of the project is ASCII, ends with a newline, has no tabs or trailing blanks and at most
# 500 lines; scripts are executable; no two headers define one name; fmt::join is included from fmt 11's header; HDF5
# files are written for older releases too. Checks the files that git tracks or would add.
set -euo pipefail
# shellcheck source=tests/style/files.sh
. "$(dirname "$(readlink -f "$0")")/files.sh"
cd "$1"
readonly MOST_LINES=500
status=0
blame() {
  printf '%s\n' "$*"
  status=1
}

files_of '*.cpp' '*.hpp' '*.cu' '*.cuh' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' '*.ini' .ci/run

for file in "${files[@]}"; do
  lines=$(wc -l <"$file")
  if [[ $file =~ ^(src|kernels|tests|benchmarks|cmake|jobs)/ ]] && ((lines > MOST_LINES)); then
    blame "$file: $lines lines; split it by idea (at most $MOST_LINES)"
  fi
  if [[ -s $file && -n $(tail -c 1 "$file") ]]; then blame "$file: no newline at its end"; fi
  if [[ $file =~ (\.sh|^\.ci/run)$ && ! -x $file ]]; then blame "$file: not executable"; fi
done
if LC_ALL=C grep -nP '[^\x00-\x7F]' "${files[@]}" | cut -c1-120; then blame "the lines above hold bytes that are not ASCII"; fi
if LC_ALL=C grep -nP '\t|[ \t]+$' "${files[@]}" | cut -c1-120; then blame "the lines above hold tabs or end in blanks"; fi
# The linker silently merges two types with the same name.
headers=()
for file in "${files[@]}"; do if [[ $file =~ ^(src|kernels)/.*\.hpp$ ]]; then headers+=("$file"); fi; done
twice=$(sed -nE 's/^(class|struct|enum class) ([A-Za-z0-9_]+)( final)?( :[^:].*)? \{.*/\2/p' "${headers[@]}" | sort | uniq -d)
if [[ -n $twice ]]; then blame "types defined in more than one header: $(tr '\n' ' ' <<<"$twice")"; fi
for file in "${files[@]}"; do
  if [[ $file =~ \.(cpp|hpp|cu|cuh)$ ]] && grep -q 'fmt::join' "$file" && ! grep -q '<fmt/ranges.h>' "$file"; then
    blame "$file: fmt::join is in <fmt/ranges.h>"
  fi
done
# HDF5 files have bounds that older releases can read (core/files/hdf5_handle.hpp).
for file in "${files[@]}"; do
  if [[ $file == src/*.cpp ]] && grep -q 'H5Fcreate' "$file" &&
    { grep 'H5Fcreate' "$file" | grep -q 'H5P_DEFAULT)' || ! grep -q 'hdf5_write_access' "$file"; }; then
    blame "$file: H5Fcreate wants an access of hdf5_write_access()"
  fi
done
if ((status == 0)); then echo "${#files[@]} sources are tidy"; fi
exit $status
