#!/usr/bin/env bash
# installer.sh ROOT: what cmake/install_dependencies.sh reads from apt's configuration and writes to it, in a folder of
# its own; and its options. Nothing is installed.
set -euo pipefail
script=$1/cmake/install_dependencies.sh
# shellcheck source=cmake/install_dependencies.sh
. "$script"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases=0

# The lines that add_releases writes on Debian $1 given the configuration on stdin in file $2; "exit N" when it ends so.
written() {
  rm -rf "$work/apt"
  mkdir -p "$work/apt/sources.list.d" "$work/apt/preferences.d"
  cat >"$work/apt/$2"
  (
    apt_folder=$work/apt
    codename=$1
    run_as_root=()
    case $1 in bookworm) add_releases trixie sid ;; *) add_releases sid ;; esac >/dev/null 2>&1
  ) || echo "exit $?"
  grep -hs '^deb' "$work/apt/sources.list.d/llmtrain.list" || true
}

expect() { # name, expected, got
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

code=0
bash "$script" --nonsense 2>/dev/null || code=$?
expect 'an unknown option' 64 "$code"
echo "$cases cases"
