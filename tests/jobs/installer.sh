#!/usr/bin/env bash
# installer.sh ROOT: tests cmake/install_dependencies.sh: its reading and writing of apt's configuration, in a separate
# folder; its options; and its choice of source if packages are missing, cannot be installed or are too new, on emulated
# machines. Nothing is installed.
set -euo pipefail
command -v dpkg >/dev/null || { echo "left out: not a Debian (no dpkg here)" && exit 77; }
script=$1/cmake/install_dependencies.sh
# shellcheck source=cmake/install_dependencies.sh
. "$script"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases=0

# Prints the lines that know_release writes on Debian $1 given the configuration on stdin in file $2, if the mirror has
# every release; "exit N" when it ends so.
written() {
  rm -rf "$work/apt"
  mkdir -p "$work/apt/sources.list.d" "$work/apt/preferences.d"
  cat >"$work/apt/$2"
  (
    apt_folder=$work/apt
    codename=$1
    run_as_root=()
    apt_get() { true; }
    apt-cache() { printf 'release n=%s,\n' ,n=trixie, ,n=sid,; }
    {
      find_mirror
      for release in ${newer[$1]}; do know_release "$release"; done
    } >/dev/null 2>&1
  ) || echo "exit $?"
  grep -hs '^deb' "$work/apt/sources.list.d/llmtrain.list" || true
}

declare -A newer=([bookworm]="trixie sid" [trixie]=sid)

expect() { # expect NAME EXPECTED ACTUAL
  cases=$((cases + 1))
  [[ $2 == "$3" ]] || { printf '%s:\nexpected\n%s\ngot\n%s\n' "$1" "$2" "$3" && exit 1; }
}

keyring=""
if [[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
  keyring=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
fi

expect 'one line, its options kept' \
  'deb [ arch=amd64 signed-by=/k/a.gpg ] http://mirror.example/debian trixie main
deb [ arch=amd64 signed-by=/k/a.gpg ] http://mirror.example/debian sid main' \
  "$(written bookworm sources.list <<'T'
deb [ arch=amd64 signed-by=/k/a.gpg ] http://mirror.example/debian bookworm main contrib
T
)"
expect 'pins, one for each' 'Pin: release n=trixie
Pin-Priority: 60
Pin: release n=sid
Pin-Priority: 50' "$(grep Pin "$work/apt/preferences.d/llmtrain")"

expect 'comments, discs, security and updates are no mirrors; tabs; an alias of the release' \
  "deb [trusted=yes${keyring:+ $keyring}] http://b.example/debian sid main" \
  "$(tr '~' '\t' <<'T' | written trixie sources.list
#deb http://no.example/ trixie main
deb cdrom:[Debian 13]/ trixie main
deb http://s.example/debian-security trixie-security main
deb http://u.example/debian trixie-updates main
deb~[trusted=yes] http://b.example/debian  stable   contrib main # x
T
)"

expect 'fields over several lines, a disabled stanza, a key inside the file' \
  "deb [check-valid-until=no arch=amd64,i386${keyring:+ $keyring}] http://a.example/debian sid main" \
  "$(written trixie sources.list.d/debian.sources <<'T'
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
Enabled: no

# another
Types: deb deb-src
URIs:  http://a.example/debian
  http://c.example/debian
Suites: trixie-updates
 trixie
Components: contrib
 main
Check-Valid-Until: no
Architectures: amd64 i386
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
T
)"

expect 'the key of a stanza' 'deb [signed-by=/k/b.asc] mirror+file:/etc/apt/mirrors/debian.list sid main' \
  "$(written trixie sources.list.d/debian.sources <<'T'
Types: deb
URIs: mirror+file:/etc/apt/mirrors/debian.list
Suites: trixie trixie-updates
Components: main
Signed-By: /k/b.asc
T
)"

expect 'a release that is known already keeps its entry and its priority' \
  'deb [signed-by=/k/c.gpg] http://d.example/debian trixie main' \
  "$(written bookworm sources.list <<'T'
deb [signed-by=/k/c.gpg] http://d.example/debian bookworm main
deb [signed-by=/k/c.gpg] http://d.example/debian sid main
T
)"
expect 'and no pin' '1' "$(grep -c Package "$work/apt/preferences.d/llmtrain")"

expect 'no mirror' 'exit 69' "$(written trixie sources.list <<<'deb http://e.example/debian bookworm main')"

# ---- emulated machines -----------------------------------------------------------------------------------------------

# Programs that work on text files: `packages` (lines of apt-cache madison), `installed` (name version), `broken` (words
# for what cannot be installed or built) and `calls`. Only releases in llmtrain.list are known.
mkdir -p "$work/bin"
world=$work/world
export world
stub() { cat >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
stub sudo <<'T'
#!/bin/sh
exec "$@"
T
stub dpkg-query <<'T'
#!/bin/bash
case "$*" in
  *libc6) echo 2.41 ;;
  -W*) sed 's/^/ii  /' "$world/installed" ;;
esac
T
stub apt-cache <<'T'
#!/bin/bash
releases=$(sed -n 's/^deb .* \([a-z]*\) main$/\1/p' "$world/apt/sources.list" "$world/apt/sources.list.d/llmtrain.list" 2>/dev/null)
case $1 in
  policy) for release in $releases; do grep -qx "no $release" "$world/broken" || echo "  release o=Debian,n=$release,c=main"; done ;;
  show) echo "Depends: ${2%%=*}-library (= ${2#*=}), libc6 (>= 2.38)" ;;
  madison)
    while read -r name version release kind; do
      if [[ $name == "$2" ]] && grep -qx "$release" <<<"$releases" &&
        { [[ $kind == Packages ]] || grep -q "^deb-src .* $release main" "$world/apt/sources.list.d/llmtrain.list"; }; then
        printf '%9s | %s | http://m.example/debian %s/main amd64 %s\n' "$name" "$version" "$release" "$kind"
      fi
    done <"$world/packages" ;;
esac
T
stub apt-get <<'T'
#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
action=$1 && shift
words=()
while (($# > 0)); do
  case $1 in -t | -P) shift ;; -*) ;; *) words+=("$1") ;; esac
  shift
done
echo "$action ${words[*]##*/}" >>"$world/calls"
for word in "${words[@]}"; do ! grep -qx "$action ${word##*/}" "$world/broken" || exit 100; done
case $action in
  update) for release in $(sed -n 's/^no //p' "$world/broken"); do ! grep -q " $release main" "$world/apt/sources.list.d/llmtrain.list" || exit 100; done 2>/dev/null ;;
  source) mkdir unpacked ;;
  install)
    for word in "${words[@]}"; do
      name=${word##*/} && name=${name%.deb}
      version=$(awk -v name="$name" '$1 == name && $4 == "Packages" { print $2; exit }' "$world/packages")
      case $name in *[=_]*) version=${name##*[=_]} && name=${name%%[=_]*} ;; esac
      sed -i "/^$name /d" "$world/installed"
      echo "$name ${version:-99}" >>"$world/installed"
    done ;;
esac
T
stub dpkg-buildpackage <<'T'
#!/bin/sh
echo "dpkg-buildpackage" >>"$world/calls"
touch ../libkokkos-dev_5.2.2.deb ../libkokkos-dev-dbgsym_5.2.2.deb
T

stub python3 <<'T'
#!/bin/bash
echo "python3 $*" >>"$world/calls"
! grep -qx pip "$world/broken" || exit 1
while [[ $1 != --target ]]; do shift; done
mkdir -p "$2/pyarrow" && touch "$2/pyarrow/libparquet.so.1"
T

# A Debian $1 (VERSION_ID $2) whose packages are on stdin.
machine() {
  rm -rf "$world"
  mkdir -p "$world/apt/sources.list.d" "$world/apt/preferences.d"
  printf 'ID=debian\nVERSION_CODENAME=%s\nVERSION_ID="%s"\n' "$1" "${2:-}" >"$world/os-release"
  echo "deb http://m.example/debian $1 main" >"$world/apt/sources.list"
  : >"$world/installed" && : >"$world/calls" && : >"$world/broken"
  cat >"$world/packages"
}
trixie() {
  machine trixie 13 <<'T'
libopenmpi-dev 5.0.7 trixie Packages
openmpi-bin 5.0.7 trixie Packages
libhdf5-dev 1.14.5 trixie Packages
hdf5-tools 1.14.5 trixie Packages
libdnnl-dev 3.7.2 trixie Packages
libdnnl-dev 3.12.1 forky Packages
libdnnl-dev 3.12.1 sid Packages
libkokkos-dev 5.2.2 sid Packages
kokkos 5.2.2 sid Sources
node-uplot 1.6.32 trixie Packages
T
}

# Runs the installer there; prints its exit code, the versions of Kokkos and oneDNN and the releases left in apt.
install() {
  local status=0 name line
  (
    PATH=$work/bin:$PATH
    apt_folder=$world/apt
    os_release=$world/os-release
    arrow_folder=$world/arrow
    main "$@"
  ) >"$work/output" 2>&1 </dev/null || status=$?
  line=$status
  for name in libkokkos-dev libdnnl-dev; do line+=" $(awk -v name=$name '$1 == name { print $2 }' "$world/installed")"; done
  echo "$line:$(sed -n -E 's/^(deb|deb-src) .* ([a-z]+) main$/ \2/p' "$world/apt/sources.list.d/llmtrain.list" 2>/dev/null)"
}
called() { grep -c "$1" "$world/calls" || true; }

trixie
expect "this release's own oneDNN, sid's Kokkos, nothing left of a release that gave nothing" '0 5.2.2 3.7.2: sid' "$(install)"
: >"$world/calls"
expect 'a second run does nothing' '0 5.2.2 3.7.2: sid' "$(install)"
expect 'at all' 0 "$(called .)"

trixie
echo 'libkokkos-dev 5.1 forky Packages' >>"$world/packages"
expect 'testing before sid' '0 5.1 3.7.2: forky' "$(install)"

trixie
echo 'no forky' >>"$world/broken"
expect 'a release that the mirror does not serve' '0 5.2.2 3.7.2: sid' "$(install)"

trixie
echo 'install libkokkos-dev=5.2.2' >>"$world/broken"
expect 'what cannot be installed is built from its source' '0 5.2.2 3.7.2:' "$(install)"
expect 'by these calls' 'build-dep kokkos=5.2.2 source kokkos=5.2.2 dpkg-buildpackage install libkokkos-dev_5.2.2.deb' \
  "$(grep -A9 build-dep "$world/calls" | grep -vE "update|libdnnl|uplot" | xargs)"

trixie
printf '%s\n' 'install libkokkos-dev=5.2.2' 'build-dep kokkos=5.2.2' >>"$world/broken"
expect 'what cannot be built is left to CMake' '0  3.7.2:' "$(install)"
expect 'which is said' 1 "$(grep -c 'CMake fetches Kokkos' "$work/output")"
expect 'and --check knows that it is missing' '1  3.7.2:' "$(install --check)"

trixie
sed -i 's/5.2.2/6.0~rc1/' "$world/packages"
expect 'a Kokkos that is too new is none' '0  3.7.2:' "$(install)"
echo 'libkokkos-dev 6.0' >>"$world/installed"
expect 'nor is one that is there' '1 6.0 3.7.2:' "$(install --check)"

trixie
sed -i '/libdnnl-dev/d' "$world/packages"
expect 'oneDNN is nothing that CMake builds' '74 5.2.2 : sid' "$(install)"

trixie
echo pip >>"$world/broken"
expect 'Arrow comes from pip, which can fail' '74 5.2.2 3.7.2: sid' "$(install --arrow)"
expect 'and is then missing' '1 5.2.2 3.7.2: sid' "$(install --arrow --check)"
: >"$world/broken"
expect 'a second run installs it alone' '0 5.2.2 3.7.2: sid' "$(install --arrow)"
: >"$world/calls"
expect 'a third does nothing' '0 5.2.2 3.7.2: sid 0' "$(install --arrow) $(called .)"

trixie
expect 'machines with GPUs need neither' '0  :' "$(install --gpu-only)"
expect 'nor a newer release' 1 "$(called update)"

trixie
sed -i 's/^node-uplot.*/node-uplot 1.6.32 sid Packages/' "$world/packages"
expect 'uPlot from a newer release, with a GPU too' '0  : sid' "$(install --gpu-only)"
trixie
sed -i '/node-uplot/d' "$world/packages"
expect 'or left to CMake' '0 5.2.2 3.7.2: sid' "$(install)"
expect 'which is said, too' 1 "$(grep -c 'CMake fetches uPlot' "$work/output")"

machine duke 15 <<<'libdnnl-dev 3.12.1 duke Packages
node-uplot 1.6.32 duke Packages
libkokkos-dev 5.2.2 sid Packages'
expect 'a newer Debian is tried' '0 5.2.2 3.12.1: sid' "$(install)"
expect 'with a note' 1 "$(grep -c 'note: Debian duke is newer' "$work/output")"
machine bullseye 11 <<<''
expect 'an older one is refused' '69  :' "$(install)"

code=0
bash "$script" --nonsense 2>/dev/null || code=$?
expect 'an unknown option' 64 "$code"
echo "$cases cases"
