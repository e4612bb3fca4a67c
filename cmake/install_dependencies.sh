#!/usr/bin/env bash
# Installs the dependencies of llmtrain: Debian packages, from the mirrors in this machine's apt configuration.
set -euo pipefail
# shellcheck source=cmake/debian_releases.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/debian_releases.sh"

usage() {
  cat <<'TEXT'
usage: cmake/install_dependencies.sh [--yes] [--developer] [--gpu-only] [--arrow] [--check]

Installs the compiler, CMake, Open MPI, HDF5, Kokkos, oneDNN, the small libraries that llmtrain is built from, and gnuplot,
on Debian 12 or newer, as root or through sudo. A second run finds everything there and does nothing.

  --yes        do not ask, on Debian 12, before the C library is taken from Debian 13
  --gpu-only   leave out Kokkos and oneDNN, which the GPU program (cmake --preset cuda) does without; its CUDA, NCCL and
               cuDNN are NVIDIA's packages
  --developer  also clang-format, clang-tidy, shellcheck, h5py, Environment Modules and a compiler for Arm,
               which tests/run.sh uses
  --arrow      also Apache Arrow's library, with which llmtrain reads Parquet: Debian has no package of it, so pip installs
               the wheel of pyarrow into /usr/local/lib/llmtrain-arrow, where CMake looks for it
  --check      install nothing; exit 0 when everything is there, 1 otherwise, with the list of what is missing

A package comes from the release that the machine runs, where that has a version that will do. Debian 12 takes Open MPI 5
and HDF5 1.14 from Debian 13 (trixie). Kokkos, oneDNN and uPlot come from the first of the newer releases whose package
can be installed here; else Kokkos and oneDNN are built from Debian's source package; a Kokkos or uPlot that cannot be had
by any of these ways is left to CMake, which fetches a pinned release. Newer releases are added in
/etc/apt/sources.list.d/llmtrain.list and pinned below everything else in /etc/apt/preferences.d/llmtrain, so that nothing
but the named packages ever comes from them.

Exit codes: 0 everything is there, 1 declined or (--check) something is missing, 64 command line, 69 not a Debian from 12
on, 74 apt failed (its output is shown), 77 neither root nor sudo.
TEXT
}

apt_folder=/etc/apt # tests replace it, and
os_release=/etc/os-release
assume_yes=false
gpu_only=false
developer=false
arrow=false
arrow_folder=/usr/local/lib/llmtrain-arrow # cmake/Arrow.cmake
check_only=false

read_options() {
  local argument
  for argument in "$@"; do
    case $argument in
      --yes | -y) assume_yes=true ;;
      --developer) developer=true ;;
      --gpu-only) gpu_only=true ;;
      --arrow) arrow=true ;;
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

# ---- requirements, and their state -----------------------------------------------------------------------------------

# Packages from the release that the machine runs.
common=(g++ cmake ninja-build ccache git ca-certificates pkg-config libinih-dev libfmt-dev nlohmann-json3-dev
  libcli11-dev libxxhash-dev zlib1g-dev libzstd-dev libpcre2-dev libyaml-dev libtomlplusplus-dev libmicrohttpd-dev
  protobuf-compiler libprotobuf-dev libgtest-dev libgmock-dev googletest binutils procps
  gnuplot-nox) # the last draws PNG for llmtool export-viz
# clang-tidy reads the omp.h of its own compiler
developer_only=(clang-format clang-tidy libomp-dev shellcheck python3-h5py python3-pandas python3-matplotlib
  environment-modules g++-aarch64-linux-gnu)
# package=oldest supported version, optionally :the first unsupported one (cmake/Dependencies.cmake)
runtime=(libopenmpi-dev=5.0 openmpi-bin=5.0 libhdf5-dev=1.14 hdf5-tools=1.14)
from_any_release=(libkokkos-dev=4.6:6 libdnnl-dev=3.6:4 node-uplot=1.6:2) # those that may come from a newer release
declare -A source_package=([libkokkos-dev]=kokkos [libdnnl-dev]=onednn)
declare -A built_by_cmake=([libkokkos-dev]=Kokkos [node-uplot]=uPlot)
# release=newer releases to search, in this order; `other` is one that this script does not know
declare -A newer_releases=([bookworm]="trixie forky sid" [trixie]="forky sid" [forky]=sid [sid]="" [other]=sid)

# Returns whether version $1 is in the range $2 (oldest[:first too new]).
in_range() {
  local oldest=${2%%:*} too_new=${2#*:}
  dpkg --compare-versions "$1" ge "$oldest" &&
    { [[ $too_new == "$2" ]] || dpkg --compare-versions "$1" lt "$too_new~"; }
}

# Fills the array `missing` with packages that are absent or too old, in one call of dpkg.
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
  for wanted in "${runtime[@]}" "${from_any_release[@]}"; do
    name=${wanted%%=*}
    version=${installed[$name]:-}
    if [[ -z $version ]] || ! in_range "$version" "${wanted#*=}"; then missing+=("$name"); fi
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
# header-only libraries. Empty archives satisfy CMake. Prints the absent ones.
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
left_to_cmake=() # packages
run_as_root=()
become_root() {
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || fail 77 "these packages are missing: ${missing[*]}" \
      "- run this script as root, or install sudo"
    run_as_root=(sudo)
  fi
  log=$(mktemp "${TMPDIR:-/tmp}/llmtrain-install.XXXXXX.log")
}

# Runs apt-get quietly; shows its output if it fails.
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

# Returns whether this machine's C library is older than Debian 13's and sid's packages require.
libc_is_old() { dpkg --compare-versions "$(dpkg-query -W -f '${Version}\n' libc6 | head -n 1)" lt 2.38; }

ask_for_newer_libc() {
  cat <<'TEXT'
install: on Debian 12, Kokkos, oneDNN and Open MPI 5 need a newer C library than this release has: libc6, libstdc++6,
install: libgomp1 and libgcc-s1 will be taken from Debian 13 (trixie). What is installed keeps running with them, but
install: Debian does not support going back to the older ones.
TEXT
  if $assume_yes || [[ ! -t 0 ]]; then return 0; fi
  local answer
  read -r -p "install? [y/N] " answer
  if [[ ! $answer =~ ^[Yy] ]]; then fail 1 "nothing was changed"; fi
}

install_missing() {
  local package packages=() wanted
  if [[ $codename == bookworm ]] && libc_is_old; then ask_for_newer_libc; fi

  # Installs this release's own packages first, so that none of them comes from another; the keyring signs the newer
  # releases.
  apt_get update || apt_failed update
  for package in "${common[@]}"; do
    if is_missing "$package"; then packages+=("$package"); fi
  done
  if [[ $codename == bookworm ]]; then
    packages+=(gfortran) # else Open MPI of Debian 13 pulls in that release's compiler
  fi
  apt_install debian-archive-keyring "${packages[@]}"

  find_mirror
  read_added
  packages=()
  for wanted in "${runtime[@]}"; do
    if is_missing "${wanted%%=*}"; then packages+=("${wanted%%=*}"); fi
  done
  if [[ $codename == bookworm ]]; then
    if libc_is_old; then packages+=(libc6 libstdc++6 libgomp1 libgcc-s1); fi
    know_release trixie || apt_failed update
    if ((${#packages[@]} > 0)); then apt_install -t trixie "${packages[@]}"; fi
    served[trixie]=yes
  elif ((${#packages[@]} > 0)); then
    apt_install "${packages[@]}"
  fi

  packages=() # packages without a source
  for wanted in "${from_any_release[@]}"; do
    if is_missing "${wanted%%=*}"; then
      install_by_any_way "${wanted%%=*}" "${wanted#*=}" || packages+=("${wanted%%=*}")
    fi
  done
  tidy_added
  if ((${#packages[@]} > 0)); then apt_failed "install ${packages[*]}"; fi
}

# Installs package $1 in the range $2: from this release, from a newer one, from its source, or leaves it to CMake. Each
# failure leads to the next way.
install_by_any_way() {
  local release
  if install_from "$(own_suite)" "$@"; then return 0; fi
  for release in $newer; do
    if know_release "$release" && install_from "$release" "$@"; then return 0; fi
  done
  for release in ${source_package[$1]:+$newer}; do
    if know_release "$release" && build_from "$release" "$@"; then return 0; fi
  done
  [[ -n ${built_by_cmake[$1]:-} ]] || return 1
  left_to_cmake+=("$1")
  say "no Debian package of $1 can be installed here: CMake fetches ${built_by_cmake[$1]}"
}

install_from() { # install_from RELEASE PACKAGE RANGE
  local version names
  version=$(version_in "$2" "$1" "$3" Packages)
  [[ -n $version ]] || return 1
  mapfile -t names < <(with_equals "$2" "$version")
  if apt_get install --no-install-recommends "${names[@]}"; then
    served[$1]=yes
    return 0
  fi
  say "$2 $version of Debian $1 cannot be installed here"
  return 1
}

# Builds package $2 in the range $3 from the source package of release $1, and installs it.
build_from() {
  local source=${source_package[$2]} version folder built=false
  if ! $with_sources; then
    with_sources=true
    write_added
    apt_get update || true
  fi
  version=$(version_in "$source" "$1" "$3" Sources)
  [[ -n $version ]] || return 1
  say "building $2 from the source package $source $version of Debian $1: minutes, oneDNN up to an hour"
  folder=$(mktemp -d "${TMPDIR:-/tmp}/llmtrain-source.XXXXXX")
  # The C library of Debian 13, which this Debian 12 may have by now, requires that release's tools.
  if [[ $codename == bookworm ]]; then apt_get install --no-install-recommends {dpkg-dev,libdpkg-perl}/trixie || true; fi
  if apt_get build-dep -P nocheck,nodoc "$source=$version" && build_package "$folder" "$source=$version" &&
    apt_get install --no-install-recommends "$folder"/*.deb; then
    built=true
  else
    say "$source $version cannot be built here (output: $log)"
  fi
  "${run_as_root[@]}" rm -rf "$folder"
  $built
}

# Installs the wheel, whose headers and libraries CMake takes; no Python environment changes.
install_arrow() {
  say "pip install pyarrow into $arrow_folder"
  "${run_as_root[@]}" python3 -m pip install --quiet --no-deps --only-binary :all: --target "$arrow_folder" 'pyarrow>=21' \
    </dev/null >>"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    fail 74 "pip could not install pyarrow; above is the end of its output"
  }
}

build_package() ( # build_package FOLDER SOURCE=VERSION: leaves the packages to install there
  cd "$1"
  apt_get source "$2" || exit 1
  cd ./*/
  "${run_as_root[@]}" env DEB_BUILD_OPTIONS="nocheck nodoc parallel=$(nproc)" DEB_BUILD_PROFILES="nocheck nodoc" \
    dpkg-buildpackage -b -us -uc </dev/null >>"$log" 2>&1 || exit 1
  "${run_as_root[@]}" rm -f ../*-dbgsym_*.deb
)

# ---- main ------------------------------------------------------------------------------------------------------------

# Code name of this Debian (empty on another system), and the other releases to search.
codename=
newer=
find_codename() {
  [[ -r $os_release ]] || return 0
  local number
  # shellcheck disable=SC1090
  read -r codename number < <(. "$os_release" &&
    if [[ ${ID:-} == debian ]]; then echo "${VERSION_CODENAME:-sid} ${VERSION_ID:-}"; fi) || return 0
  # The newer C library installs base-files too, so that a Debian 12 that this script has changed reports itself as 13.
  if grep -qs 'on Debian bookworm' "$(sources_file)"; then codename=bookworm; fi
  newer=${newer_releases[$codename]-unknown}
  if [[ $newer == unknown ]]; then
    newer=${newer_releases[other]}
    if [[ ${number%%.*} =~ ^[0-9]+$ ]] && ((${number%%.*} < 12)); then newer=none; fi
  fi
}

say_what_is_needed() {
  cat >&2 <<'TEXT'
install: this is not Debian, so nothing is installed. llmtrain needs: a C++20 compiler (GCC 12 or newer), CMake 3.25,
ninja, MPI (Open MPI 5), HDF5 1.10 or newer (serial, C), Kokkos 4.6 to 5 with OpenMP, oneDNN 3.6 or newer built with
DNNL_EXPERIMENTAL_UKERNEL, fmt 9, nlohmann-json 3.11, CLI11 2.1, inih, xxHash, zlib, zstd, PCRE2, libyaml, toml++ 3.3,
libmicrohttpd, uPlot 1.6, Protocol Buffers and, for the tests, GoogleTest. Three ways to get them:
spack.yaml in this repository (spack env activate . && spack install), the modules of your site, or your distribution's
packages. Where they are there already, build with: cmake --preset host && cmake --build --preset host
TEXT
}

main() {
  read_options "$@"
  if $developer; then common+=("${developer_only[@]}"); fi
  if $arrow; then common+=(python3-pip); fi
  if $gpu_only; then from_any_release=(node-uplot=1.6:2); fi
  find_codename
  if [[ -z $codename ]] || ! command -v dpkg-query >/dev/null; then
    say_what_is_needed
    exit 69
  fi

  find_missing
  local archives without_arrow=''
  archives=$(absent_archives)
  if $arrow && ! compgen -G "$arrow_folder/pyarrow/libparquet.so.*" >/dev/null; then without_arrow=pyarrow; fi
  if ((${#missing[@]} == 0)) && [[ -z $archives$without_arrow ]]; then
    say "everything is there"
    exit 0
  fi
  if $check_only; then fail 1 "missing: ${missing[*]} $archives $without_arrow"; fi
  if [[ $newer == none ]]; then
    fail 69 "Debian $codename is older than 12 (bookworm), whose packages this script knows. Missing: ${missing[*]}"
  fi
  if [[ -z ${newer_releases[$codename]+known} ]]; then
    say "note: Debian $codename is newer than this script: it tries the packages that Debian 13 has"
  fi

  become_root
  if ((${#missing[@]} > 0)); then
    say "missing: ${missing[*]}"
    install_missing
    find_missing
    ((${#missing[@]} <= ${#left_to_cmake[@]})) || fail 74 "apt-get succeeded, but these packages are absent or too old: ${missing[*]} (its output: $log)"
  fi
  absent_archives | while read -r archive; do
    say "writing the empty archive $archive, which Kokkos' CMake files name"
    "${run_as_root[@]}" ar rcs "$archive"
  done
  if [[ -n $without_arrow ]]; then install_arrow; fi
  if ((${#left_to_cmake[@]} == 0)); then rm -f "$log"; fi
  say "done"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
