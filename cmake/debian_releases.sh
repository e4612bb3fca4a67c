# shellcheck shell=bash
# Sourced by install_dependencies.sh: the releases of Debian in apt's configuration, those that it adds there, and what
# versions of a package they have. Uses its say, fail, apt_get, in_range, apt_folder, codename and run_as_root.
# shellcheck disable=SC2154,SC2034

sources_file() { printf '%s\n' "$apt_folder/sources.list.d/llmtrain.list"; }
pins_file() { printf '%s\n' "$apt_folder/preferences.d/llmtrain"; }

# Prints "options URI" of every package source in the machine's configuration that serves release $1 itself (not its
# updates or security), in one-line form: the words of *.list, the relevant fields of *.sources.
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

# Prints the name of this Debian release in apt's configuration: its code name or an alias.
own_suite() {
  local suite
  for suite in "$codename" stable oldstable testing unstable sid; do
    if mirrors_of "$suite" | grep -vE "cdrom:|security" >/dev/null; then
      printf '%s\n' "$suite"
      return 0
    fi
  done
  return 1
}

# Prints the first mirror that apt itself uses for this Debian release, with a key.
mirror=
find_mirror() {
  local suite
  suite=$(own_suite) || fail 69 "apt has no source for Debian $codename (main) in $apt_folder: add one first"
  mirror=$(mirrors_of "$suite" | grep -vE 'cdrom:|security' | head -n 1)
  if [[ $mirror != *signed-by* && -r /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
    local uri=${mirror##* } options=${mirror%"${mirror##* }"}
    options=${options#[}
    options=${options%]*}
    mirror="[${options:+$options }signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri"
  fi
}

added=()           # releases of llmtrain.list, oldest first
declare -A served  # those that provided packages
declare -A told    # releases of the machine's own configuration that have been reported
with_sources=false # true if source packages are listed too

read_added() {
  mapfile -t added < <(sed -n -E 's/^deb .* ([a-z]+) main$/\1/p' "$(sources_file)" 2>/dev/null)
  local release
  for release in "${added[@]}"; do served[$release]=before; done
}

# Writes the releases in `added` with their pins; the pins first, so that a release is never known without its pin.
write_added() {
  local release priority kind
  for release in "${added[@]}"; do
    case $release in trixie) priority=60 ;; forky) priority=55 ;; *) priority=50 ;; esac
    printf 'Package: *\nPin: release n=%s\nPin-Priority: %d\n\n' "$release" "$priority"
  done | "${run_as_root[@]}" tee "$(pins_file)" >/dev/null
  {
    printf '# written by cmake/install_dependencies.sh of llmtrain on Debian %s\n' "$codename"
    for release in "${added[@]}"; do
      for kind in deb deb-src; do
        if [[ $kind == deb ]] || $with_sources; then printf '%s %s %s main\n' "$kind" "$mirror" "$release"; fi
      done
    done
  } | "${run_as_root[@]}" tee "$(sources_file)" >/dev/null
}

is_added() { [[ " ${added[*]} " == *" $1 "* ]]; }

# Adds release $1 to apt, pinned low, unless the machine has it already (then its own pins hold). Returns false if the
# mirror does not serve it; the configuration is then restored, since later calls of apt-get update would fail.
know_release() {
  if is_added "$1"; then return 0; fi
  if [[ -n $(mirrors_of "$1") ]]; then
    if [[ -z ${told[$1]:-} ]]; then say "apt already knows Debian $1: its entry and its priorities stay as they are"; fi
    told[$1]=yes
    return 0
  fi
  say "adding Debian $1 pinned low, in $(sources_file) and $(pins_file)"
  added+=("$1")
  write_added
  apt_get update || true # a foreign source may be what fails
  if apt-cache policy | grep ",n=$1," >/dev/null; then return 0; fi
  say "the mirror does not serve Debian $1"
  forget_release "$1"
  return 1
}

forget_release() {
  local release kept=()
  for release in "${added[@]}"; do
    if [[ $release != "$1" ]]; then kept+=("$release"); fi
  done
  added=("${kept[@]}")
  write_added
}

# Removes added releases that provided nothing, and lists of source packages.
tidy_added() {
  local release before="${added[*]} $with_sources"
  with_sources=false
  for release in "${added[@]}"; do
    if [[ -z ${served[$release]:-} ]]; then forget_release "$release"; fi
  done
  if [[ $before != "${added[*]} false" ]]; then write_added; fi
}

# Prints the newest version of package $1 in release $2 that is in the range $3; $4: Packages or Sources.
version_in() {
  local version
  apt-cache madison "$1" 2>/dev/null | awk -F' *[|] *' -v release=" $2/main " -v kind="$4" \
    '$3 ~ kind "$" && index(" " $3, release) { gsub(/ /, "", $2); print $2 }' | sort -rV |
    while read -r version; do
      if in_range "$version" "$3"; then printf '%s\n' "$version" && break; fi
    done
}

# Prints package $1 in version $2 and the packages that must come with it in equal version, as name=version.
with_equals() {
  printf '%s=%s\n' "$1" "$2"
  apt-cache show "$1=$2" | sed -n 's/^Depends: //p' | tr ',' '\n' |
    sed -n -E 's/^ *([a-z0-9.+-]+) \(= ([^)]+)\).*/\1=\2/p'
}
