#!/usr/bin/env bash
# arm.sh ROOT BUILD_FOLDER: processor-dependent code (kernels/host, src/device, src/core) compiles for 64-bit Arm, with
# a cross compiler and the headers of this machine. Skipped if there is no such compiler.
set -euo pipefail
cd "$1"
build=$2
if ! COMPILER=$(compgen -c aarch64-linux-gnu-g++ | sort -V | tail -n 1); then
  echo "left out: no cross compiler for Arm (aarch64-linux-gnu-g++) is here"
  exit 77
fi
commands=$(sed -nE 's/^ *"command": "(.*)",?$/\1/p' "$build/compile_commands.json" |
  grep -E -- "-c $PWD/(kernels/host|src/device|src/core)/[a-z0-9_/]+\.cpp\$" | grep -vE '_avx512\.cpp$' |
  sed -E 's/\\(["\\])/\1/g') # JSON's escapes
[[ -n $commands ]] || { echo "nothing to compile in $build" && exit 1; }
export COMPILER
# Definitions and folders of headers stay of a command; what is said of the processor does not.
# shellcheck disable=SC2016 # expanded by the inner shell
if ! xargs -P "$(nproc)" -d '\n' -I{} bash -c '
  eval "words=($1)"
  kept=() previous=
  for word in "${words[@]}"; do
    case $previous$word in
      -D* | -I* | -std=* | -f[amn]*) kept+=("$word") ;;
      -isystem | -c) previous=$word && continue ;;
      -isystem* | -c*) kept+=("$previous" "$word") ;;
    esac
    previous=
  done
  "$COMPILER" -march=armv8.2-a -Wall -Wextra -fopenmp -fsyntax-only "${kept[@]}"' arm {} <<<"$commands"; then
  echo "it does not compile for Arm"
  exit 1
fi
echo "$(wc -l <<<"$commands") files compile with $COMPILER"
