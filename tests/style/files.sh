# shellcheck shell=bash
# Sourced: files_of PATTERN... fills the array `files` with what git tracks or would add; outside git with what is there.
files_of() {
  local file
  files=()
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    while read -r file; do
      if [[ -f $file ]]; then files+=("$file"); fi
    done < <(git ls-files --cached --others --exclude-standard -- "$@")
  else
    local expression=()
    for file in "$@"; do expression+=(-o -path "./$file"); done
    mapfile -t files < <(find . \( -path ./build -o -path ./runs \) -prune -o -type f \( "${expression[@]:1}" \) -print |
      sed 's#^\./##' | sort)
  fi
  if ((${#files[@]} == 0)); then
    echo "no files of the kinds $* in $PWD"
    return 1
  fi
}
