#!/usr/bin/env bash
# Copies oneDNN with cpuid and xgetbv replaced by trapping instructions, so that amx_emulator.cpp can answer them:
#
#   make_trapping_onednn.sh LIBDNNL.so FOLDER     writes the copy to FOLDER, under the name that programs load
set -euo pipefail
library=$(readlink -f "$1")
folder=$2
name=$(objdump -p "$library" | awk '$1 == "SONAME" {print $2}')
places=$(objdump -d --no-show-raw-insn "$library" |
  awk '$2 == "cpuid" || $2 == "xgetbv" {print $2, substr($1, 1, length($1) - 1)}')
# Converts an address in memory to an offset in the file, by the executable segment.
read -r offset address < <(readelf -lW "$library" | awk '$1 == "LOAD" && / R E /{print $2, $3}')
if [[ -z $name || -z $places || -z $address ]]; then
  echo "make_trapping_onednn.sh: $library is not an x86-64 shared library that queries the processor" >&2
  exit 65
fi

mkdir -p "$folder"
copy=$(mktemp "$folder/$name.XXXXXX")
trap 'rm -f -- "$copy"' EXIT
cp --no-preserve=mode "$library" "$copy"
while read -r instruction place; do
  code='\x0f\x0b' # ud2
  if [[ $instruction == xgetbv ]]; then code='\x0f\xb9\xc0'; fi # ud1
  # shellcheck disable=SC2059 # the format is the bytes
  printf "$code" | dd of="$copy" bs=1 seek=$((16#$place - address + offset)) conv=notrunc status=none
done <<<"$places"
chmod 755 "$copy"
mv "$copy" "$folder/$name"
