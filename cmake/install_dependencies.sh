#!/usr/bin/env bash
# Installs what llmtrain is built from: Debian packages, from the mirrors that this machine's apt already uses.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: cmake/install_dependencies.sh [--yes] [--developer] [--check]

Installs the compiler, CMake, Open MPI 5, HDF5 1.14, Kokkos, oneDNN and the small libraries that llmtrain is built from,
on Debian 12 or 13, as root or through sudo. A second run finds everything there and does nothing.

  --yes        do not ask, on Debian 12, before the C library is taken from Debian 13
  --developer  also clang-format, clang-tidy, shellcheck, h5py, Environment Modules and a compiler for Arm, which
               tests/run.sh uses
  --check      install nothing; exit 0 when everything is there, 1 otherwise, with the list of what is missing

Kokkos and a current oneDNN are in Debian's sid only, and on Debian 12 Open MPI 5 and HDF5 1.14 in Debian 13 (trixie)
only. These releases are added in /etc/apt/sources.list.d/llmtrain.list and pinned below everything else in
/etc/apt/preferences.d/llmtrain, so that nothing but the named packages ever comes from them.

Exit codes: 0 everything is there, 1 declined or (--check) something is missing, 64 command line, 69 not a Debian that
this script knows, 74 apt failed (its output is shown), 77 neither root nor sudo.
TEXT
}

apt_folder=/etc/apt # tests put their own here
assume_yes=false
developer=false
check_only=false

read_options() {
  local argument
  for argument in "$@"; do
    case $argument in
      --yes | -y) assume_yes=true ;;
      --developer) developer=true ;;
      --check) check_only=true ;;
      -h | --help) usage && exit 0 ;;
      *) fail 64 "unknown option '$argument' (--help lists them)" ;;
    esac
  done
}

say() { printf 'install: %s\n' "$*"; }
fail() {
  local code=$1
  shift
  printf 'install: %s\n' "$*" >&2
  exit "$code"
}

# ---- what is needed, and what of it is there -------------------------------------------------------------------------

# Packages from the release that the machine runs.
common=(g++ cmake ninja-build ccache git ca-certificates pkg-config libinih-dev libfmt-dev nlohmann-json3-dev
  libcli11-dev libxxhash-dev zlib1g-dev libzstd-dev libpcre2-dev liburing-dev libgtest-dev libgmock-dev googletest
  binutils procps)
# clang-tidy reads the omp.h of its own compiler
developer_only=(clang-format clang-tidy libomp-dev shellcheck python3-h5py environment-modules g++-aarch64-linux-gnu)
# package=oldest version that will do
runtime=(libopenmpi-dev=5.0 openmpi-bin=5.0 libhdf5-dev=1.14 hdf5-tools=1.14)
from_sid=(libkokkos-dev=4.6 libdnnl-dev=3.6)

# Fills the array `missing` with the packages that are absent or too old: one call of dpkg for all.
find_missing() {
  local -A installed=()
  local name version status
  while read -r status name version; do
    if [[ $status == ii ]]; then installed[${name%%:*}]=$version; fi
  done < <(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package} ${Version}\n' 2>/dev/null)
  missing=()
  for name in "${common[@]}"; do
    if [[ -z ${installed[$name]:-} ]]; then missing+=("$name"); fi
  done
  local wanted
  for wanted in "${runtime[@]}" "${from_sid[@]}"; do
    name=${wanted%%=*}
    version=${installed[$name]:-}
    if [[ -z $version ]] || dpkg --compare-versions "$version" lt "${wanted#*=}"; then missing+=("$name"); fi
  done
}

is_missing() {
  local name
  for name in "${missing[@]}"; do
    if [[ $name == "$1" ]]; then return 0; fi
  done
  return 1
}

# Debian's Kokkos names libkokkosalgorithms.a and libkokkossimd.a in its CMake files but does not contain them: both are
# libraries of headers. Empty archives satisfy CMake. Prints those that are absent.
absent_archives() {
  local targets archive prefix
  targets=$(dpkg-query -L libkokkos-dev 2>/dev/null | grep -E '/KokkosTargets-.*\.cmake$' || true)
  [[ -n $targets ]] || return 0
  # shellcheck disable=SC2016 # CMake's variable, not ours
  prefix='${_IMPORT_PREFIX}'
  sed -n -E 's/^ *IMPORTED_LOCATION_[A-Z]+ "(.*\.a)"$/\1/p' "$targets" | while read -r archive; do
    archive=${archive/"$prefix"//usr}
    if [[ ! -e $archive ]]; then printf '%s\n' "$archive"; fi
  done
}

# ---- apt -------------------------------------------------------------------------------------------------------------

log=
run_as_root=()
become_root() {
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || fail 77 "these packages are missing: ${missing[*]}" \
      "- run this script as root, or install sudo"
    run_as_root=(sudo)
  fi
  log=$(mktemp "${TMPDIR:-/tmp}/llmtrain-install.XXXXXX.log")
}

# Runs apt-get quietly; its output is kept and, when it fails, shown.
apt_get() {
  say "apt-get $*"
  if ! "${run_as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
    apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -o Dpkg::Options::=--force-confold \
    "$@" </dev/null >>"$log" 2>&1; then
    return 1
  fi
}
apt_failed() {
  tail -n 60 "$log" >&2
  fail 74 "apt-get $1 failed; above is the end of its output, all of it is in $log"
}
apt_install() { apt_get install --no-install-recommends "$@" || apt_failed install; }

sources_file() { printf '%s\n' "$apt_folder/sources.list.d/llmtrain.list"; }
pins_file() { printf '%s\n' "$apt_folder/preferences.d/llmtrain"; }

# Prints "options URI" of every source of packages in the machine's configuration that serves release $1 itself (not its
# updates or security), in one-line form: from *.list the words as they are, from *.sources the fields that matter.
mirrors_of() {
  local file
  for file in "$apt_folder"/sources.list "$apt_folder"/sources.list.d/*.list; do
    [[ -r $file && $file != "$(sources_file)" ]] || continue
    sed -n -E -e "s/[[:space:]]+/ /g" -e "s/^ ?deb (\[[^]]*\] )?([^ ]+) $1\/? (.* )?main( .*)?$/\1\2/p" "$file"
  done
  for file in "$apt_folder"/sources.list.d/*.sources; do
    [[ -r $file ]] || continue
    awk -v release="$1" '
      function flush_stanza(   uris, count, i, options, valid) {
        if (field["types"] ~ /(^| )deb( |$)/ && (" " field["suites"] " ") ~ (" " release " ") &&
            field["components"] ~ /(^| )main( |$)/ && tolower(field["enabled"]) !~ /^ *(no|false|0|off)/) {
          options = ""
          if (field["signed-by"] ~ /^ *\//) options = options " signed-by=" trimmed(field["signed-by"])
          if (field["trusted"] != "") options = options " trusted=" trimmed(field["trusted"])
          valid = trimmed(field["check-valid-until"])
          if (valid != "") options = options " check-valid-until=" valid
          if (field["architectures"] != "") options = options " arch=" commas(field["architectures"])
          count = split(trimmed(field["uris"]), uris, / +/)
          for (i = 1; i <= count; ++i) print (options == "" ? "" : "[" substr(options, 2) "] ") uris[i]
        }
        split("", field)
      }
      function trimmed(text) { gsub(/^ +| +$/, "", text); return text }
      function commas(text) { text = trimmed(text); gsub(/ +/, ",", text); return text }
      /^#/ { next }
      /^[[:space:]]*$/ { flush_stanza(); next }
      /^[[:space:]]/ { gsub(/[[:space:]]+/, " "); field[key] = field[key] $0; next }
      { key = tolower($0); sub(/:.*/, "", key); text = $0; sub(/^[^:]*:/, "", text); gsub(/[[:space:]]+/, " ", text)
        field[key] = text }
      END { flush_stanza() }' "$file"
  done
}

# The first mirror that apt itself uses for this release of Debian.
find_mirror() {
  local suite found
  for suite in "$codename" stable oldstable; do
    found=$(mirrors_of "$suite" | grep -vE 'cdrom:|security' | head -n 1)
    if [[ -n $found ]]; then
      printf '%s\n' "$found"
      return 0
    fi
  done
  return 1
}

# Adds releases $@ with low pins, unless the machine has them already (then its own pins hold).
add_releases() {
  local release mirror priority added="" pins=""
  mirror=$(find_mirror) || fail 69 "apt has no source for Debian $codename (main) in $apt_folder: add one first"
  if [[ $mirror != *signed-by* && -r /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
    local uri=${mirror##* } options=${mirror%"${mirror##* }"}
    options=${options#[}
    options=${options%]*}
    mirror="[${options:+$options }signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri"
  fi
  for release in "$@"; do
    if [[ -n $(mirrors_of "$release") ]]; then
      say "apt already knows Debian $release: its entry and its priorities stay as they are"
      continue
    fi
    priority=50
    if [[ $release == trixie ]]; then priority=60; fi
    added+="deb $mirror $release main"$'\n'
    pins+="Package: *"$'\n'"Pin: release n=$release"$'\n'"Pin-Priority: $priority"$'\n\n'
  done
  if [[ -n $added ]]; then
    say "adding Debian $* pinned low, in $(sources_file) and $(pins_file)"
    # the pins first: no moment in which a release is known and not pinned
    printf '%s' "$pins" | "${run_as_root[@]}" tee "$(pins_file)" >/dev/null
  fi
  printf '# written by cmake/install_dependencies.sh of llmtrain on Debian %s\n%s' "$codename" "$added" |
    "${run_as_root[@]}" tee "$(sources_file)" >/dev/null
}

# Prints the newest version of package $1 in release $2.
version_in() {
  apt-cache madison "$1" | awk -F' *[|] *' -v release=" $2/main " \
    '!/Sources$/ && index(" " $3, release) { gsub(/ /, "", $2); print $2 }' | sort -V | tail -n 1
}

# Prints package $1 of release $2 and the packages that must come with it in equal version, as name=version.
with_equals() {
  local version
  version=$(version_in "$1" "$2")
  [[ -n $version ]] || return 1
  printf '%s=%s\n' "$1" "$version"
  apt-cache show "$1=$version" | sed -n 's/^Depends: //p' | tr ',' '\n' |
    sed -n -E 's/^ *([a-z0-9.+-]+) \(= ([^)]+)\).*/\1=\2/p'
}

# Whether this machine's C library is older than what Debian 13's and sid's packages stand on.
libc_is_old() { dpkg --compare-versions "$(dpkg-query -W -f '${Version}\n' libc6 | head -n 1)" lt 2.38; }

ask_for_newer_libc() {
  cat <<'TEXT'
install: on Debian 12, Kokkos, oneDNN and Open MPI 5 need a newer C library than this release has: libc6, libstdc++6,
install: libgomp1 and libgcc-s1 will be taken from Debian 13 (trixie). What is installed keeps running with them, but
install: Debian does not support going back to the older ones.
TEXT
  if $assume_yes || [[ ! -t 0 ]]; then return 0; fi
  local answer
  read -r -p "install: go on? [y/N] " answer
  if [[ ! $answer =~ ^[Yy] ]]; then fail 1 "nothing was changed"; fi
}

install_missing() {
  local package packages=() wanted
  if [[ $codename == bookworm ]] && libc_is_old; then ask_for_newer_libc; fi

  # This release's own packages first, so that none of them comes from another; the keyring signs the newer releases.
  apt_get update || apt_failed update
  for package in "${common[@]}"; do
    if is_missing "$package"; then packages+=("$package"); fi
  done
  if [[ $codename == bookworm ]]; then
    packages+=(gfortran) # else Open MPI of Debian 13 brings that release's compiler
  fi
  apt_install debian-archive-keyring "${packages[@]}"

  case $codename in
    bookworm) add_releases trixie sid ;;
    trixie) add_releases sid ;;
  esac
  apt_get update || apt_failed update

  packages=()
  for wanted in "${runtime[@]}"; do
    if is_missing "${wanted%%=*}"; then packages+=("${wanted%%=*}"); fi
  done
  if [[ $codename == bookworm ]]; then
    if libc_is_old; then packages+=(libc6 libstdc++6 libgomp1 libgcc-s1); fi
    if ((${#packages[@]} > 0)); then apt_install -t trixie "${packages[@]}"; fi
  elif ((${#packages[@]} > 0)); then
    apt_install "${packages[@]}"
  fi

  for wanted in "${from_sid[@]}"; do
    if is_missing "${wanted%%=*}"; then install_newest "${wanted%%=*}"; fi
  done
}

# A package of sid with its library; where sid has moved on to what cannot be installed here, the next older release.
install_newest() {
  local release names
  for release in sid trixie "$codename"; do
    mapfile -t names < <(with_equals "$1" "$release" || true)
    ((${#names[@]} > 0)) || continue
    if apt_get install --no-install-recommends "${names[@]}"; then return 0; fi
    say "$1 of Debian $release cannot be installed here"
  done
  apt_failed "install $1"
}

# ---- main ------------------------------------------------------------------------------------------------------------

# The code name of this Debian, empty on another system.
codename=
find_codename() {
  [[ -r /etc/os-release ]] || return 0
  # shellcheck disable=SC1091
  codename=$(. /etc/os-release && if [[ ${ID:-} == debian ]]; then echo "${VERSION_CODENAME:-sid}"; fi)
  # The newer C library brings base-files along: a Debian 12 that this script has served calls itself 13.
  if grep -qsE ' trixie main|on Debian bookworm' "$(sources_file)"; then codename=bookworm; fi
}

say_what_is_needed() {
  cat >&2 <<'TEXT'
install: this is not Debian, so nothing is installed. llmtrain needs: a C++20 compiler (GCC 12 or newer), CMake 3.25,
ninja, MPI (Open MPI 5), HDF5 1.10 or newer (serial, C), Kokkos 4.6 or newer with OpenMP, oneDNN 3.6, fmt 9,
nlohmann-json 3.11, CLI11 2.1, inih, xxHash, zlib, zstd, PCRE2, if you like liburing (state offloaded to a disk) and, for the
tests, GoogleTest. Three ways to get them:
spack.yaml in this repository (spack env activate . && spack install), the modules of your site, or your distribution's
packages. Where they are there already, build with: cmake --preset host && cmake --build --preset host
TEXT
}

main() {
  read_options "$@"
  if $developer; then common+=("${developer_only[@]}"); fi
  find_codename
  if [[ -z $codename ]] || ! command -v dpkg-query >/dev/null; then
    say_what_is_needed
    exit 69
  fi

  find_missing
  local archives
  archives=$(absent_archives)
  if ((${#missing[@]} == 0)) && [[ -z $archives ]]; then
    say "everything is there"
    exit 0
  fi
  if $check_only; then fail 1 "missing: ${missing[*]} $archives"; fi
  case $codename in
    bookworm | trixie | forky | sid) ;; # the last two: whatever they hold now
    *) fail 69 "Debian $codename is not known to this script (12 bookworm and 13 trixie are). Missing: ${missing[*]}" ;;
  esac

  become_root
  if ((${#missing[@]} > 0)); then
    say "missing: ${missing[*]}"
    install_missing
    find_missing
    ((${#missing[@]} == 0)) || fail 74 "apt-get ended well, yet absent or too old: ${missing[*]} (its output: $log)"
  fi
  absent_archives | while read -r archive; do
    say "writing the empty archive $archive, which Kokkos' CMake files name"
    "${run_as_root[@]}" ar rcs "$archive"
  done
  rm -f "$log"
  say "done"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
