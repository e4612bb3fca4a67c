#!/usr/bin/env bash
# python.sh ROOT: the benchmarks' scripts of Python and the recipes for Spack compile; scripts for GPUs, which run on
# few machines, print their requirements without torch; rounds beside peers leave out what fails, go on with the best and
# end where losses differ or the machine is busy; recipes name the release that CMake would fetch, and Spack's
# environments are strings to a YAML reader.
set -euo pipefail
if ! python3 -c ''; then
  echo "skipped: python3 does not start"
  exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
cd "$1/benchmarks"
python3 - ./*.py peers/*.py ../spack_repo/llmtrain/packages/*/package.py <<'END'
import sys
for path in sys.argv[1:]:
    with open(path) as f:
        compile(f.read(), path, "exec")
END
python3 - <<'END'
import functools, peer_rounds
def ended(function, *arguments):
    try:
        function(*arguments)
    except SystemExit as end:
        return end.code
def result(speed, peak, loss=1.0):
    if speed == 0:
        raise peer_rounds.Failed("failed")
    return dict(speed=speed, peak=peak, losses=[loss])
def check(results):
    for name in results:
        peer_rounds.check_losses(results["llmtrain"][0]["losses"], results[name][0]["losses"], 1e-3, name)
def play(**peers):
    programs = {name: functools.partial(result, *peer) for name, peer in dict(llmtrain=(9, 5), **peers).items()}
    return peer_rounds.play(programs, 2, True, check, lambda name: name != "bf16", ["default"])
kept = play(default=(1, 9), absent=(0, 0), fast=(5, 9), near=(4.6, 8), slow=(3, 8), small=(2, 6), bf16=(2, 1))
assert list(kept) == ["llmtrain", "default", "fast", "near", "small"] and len(kept["near"]) == 2, kept
assert "differ" in ended(lambda: play(default=(1, 9), other=(5, 9, 1.002)))
assert ended(lambda: play(default=(1, 9), other=(5, 9, 1.0005))) is None
assert peer_rounds.used_by_others() >= 0
for used, code in ((0.0, None), (1.0, 75)):
    peer_rounds.used_by_others = lambda: used
    assert ended(peer_rounds.expect_quiet) == code, (used, code)
END
for package in inih uPlot; do
  commit=$(sed -n "s/^set(LLMTRAIN_RELEASE_$package \".*;\(.*\);.*\")\$/\1/p" ../cmake/Fetch.cmake)
  if [[ -z $commit ]] || ! grep -q "commit=\"$commit\"" "../spack_repo/llmtrain/packages/${package,,}/package.py"; then
    echo "spack_repo has another $package than cmake/Fetch.cmake ($commit)"
    exit 1
  fi
done
unquoted=$(grep -nE '^ *- [^"#]*:( |$)' ../spack.yaml ../spack/cuda/spack.yaml || true)
[[ -z $unquoted ]] || { echo "a colon makes these specs mappings: quote them"$'\n'"$unquoted" && exit 1; }
scripts=(gpu_*.py)
((${#scripts[@]} >= 3)) || { echo "too few scripts for GPUs: ${scripts[*]}" && exit 1; }
for script in "${scripts[@]}"; do
  help=$(python3 "$script" --help)
  # run_gpu_tests.sh passes these to every script.
  [[ $help == *" --programs "* && $help == *"[--rounds "* ]] || { echo "$script --help: $help" && exit 1; }
done
! python3 gpu_kernels.py --nonsense 2>/dev/null || { echo "gpu_kernels.py takes any option" && exit 1; }
echo "${#scripts[@]} scripts for GPUs"
