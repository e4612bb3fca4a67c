#!/usr/bin/env bash
# package.sh ROOT BUILD CPACK MPIRUN...: the tarball of cpack, unpacked somewhere else, runs a deck; its module files
# work in Environment Modules and Lmod, if these are installed (LMOD_INIT names Lmod's init/bash elsewhere).
set -euo pipefail
root=$1 build=$2 cpack=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*" && exit 1; }

"$cpack" --config "$build/CPackConfig.cmake" -B "$work/packed" >cpack.txt || { cat cpack.txt && exit 1; }
(cd packed && sha256sum --check --quiet ./*.sha256)
mkdir elsewhere
tar -xzf packed/llmtrain-*.tar.gz -C elsewhere --strip-components=1
prefix=$work/elsewhere
rm -r packed
for file in bin/llmtrain bin/llmtool share/llmtrain/inputs/quickstart.ini share/llmtrain/jobs/train.sbatch \
  share/doc/llmtrain/docs/reliability.md; do
  [[ -e $prefix/$file ]] || fail "$file is missing"
done
[[ -x $prefix/share/llmtrain/jobs/train.sbatch ]] || fail "the jobs cannot be run"
if found=$(grep -rlF -e "$build" -e "$root" "$prefix"); then fail "paths of the build are in: $found"; fi

for ((i = 0; i < 40; ++i)); do echo "Line $((i * i % 71)) has some words to train on."; done >text.txt
cat >deck.ini <<END
[run]
max_steps = 2
output = $work/runs
[model]
d_model = 16
n_layers = 1
n_heads = 2
[data]
train = $work/text.txt
[batch]
sequence_length = 16
global = 4
END
"$prefix/bin/llmtrain" --version | tee version.txt
"$@" "$prefix/bin/llmtrain" deck.ini run.name=a >log.txt || { cat log.txt && exit 1; }
grep -q '"step":2,' runs/a/ledger.jsonl || fail "not two steps"
"$prefix/bin/llmtool" verify runs/a/checkpoints/latest

# In a separate shell: `module load` finds the programs, `module unload` removes them from the path.
check_modules() { # check_modules INIT_SCRIPT MODULE_FILES
  # shellcheck disable=SC2016 # expanded by the inner shell
  env -i HOME="$work" PATH=/usr/bin:/bin "LUA_PATH=${LUA_PATH:-;;}" "LUA_CPATH=${LUA_CPATH:-;;}" bash -c '
    set -e
    source "$1"
    module use "$2"
    [[ $(module avail 2>&1) =~ llmtrain/[0-9.]+-host ]]
    module load llmtrain
    [[ $(command -v llmtrain) == "$3/bin/llmtrain" && -d $LLMTRAIN_SHARE/inputs ]]
    llmtrain --version | cmp - "$4"
    module help llmtrain 2>&1 | grep -q "trains language models"
    module unload llmtrain
    ! command -v llmtrain && [[ -z ${LLMTRAIN_SHARE:-} ]]' \
    check "$1" "$prefix/share/llmtrain/modules/$2" "$prefix" "$work/version.txt" || fail "$1, $2: does not work"
  echo "module files $2: loaded and unloaded by $1"
}
if [[ -r /usr/share/modules/init/bash ]]; then
  check_modules /usr/share/modules/init/bash tcl
else
  echo "left out: Environment Modules (not installed)"
fi
lmod=${LMOD_INIT:-/usr/share/lmod/lmod/init/bash}
if [[ -r $lmod ]]; then
  check_modules "$lmod" lua
  check_modules "$lmod" tcl
else
  echo "left out: Lmod (not installed)"
fi
