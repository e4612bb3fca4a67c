"""What the benchmarks share that run llmtrain and the settings of a peer in turn (A B C A B C ...): children and their
costs, the load of the machine, the choice among the settings, the check of losses and the table."""

import argparse
import ctypes.util
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time

WARM = 2  # untimed steps: kernels, plans, compilation
BUSY = 0.2  # processors that others may use while something is measured
FIRST_STEP = re.compile(r"step +1\b")  # the line that training programs print at the end of the step


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":")[1].strip() for line in f if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else "unknown processor"


def precision():
    """bf16 where this processor multiplies it."""
    with open("/proc/cpuinfo") as f:
        text = f.read()
    return "bf16" if "amx_bf16" in text or "avx512_bf16" in text else "fp32"


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def program_file(path):
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is not a program")
    return path


class Failed(SystemExit):
    """A program did: what it printed last, which ends the benchmark unless somebody can do without it."""


def checked(command, environment=None):
    """Of the process: seconds from its start to its end, and to the line of the first step as it comes through the pipe;
    seconds of processor time; the largest resident set in bytes; what it printed."""
    command = [str(part) for part in command]
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
    lines, first = [], []

    def read():
        for line in process.stdout:
            if not first and FIRST_STEP.match(line):
                first.append(time.perf_counter() - begin)
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    reader.join(timeout=10)  # a child that outlives the process holds the pipe
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"failed: {' '.join(command)}\n{''.join(lines)[-4000:]}")
    return dict(seconds=seconds, first=first[0] if first else None, processor=usage.ru_utime + usage.ru_stime,
                peak=usage.ru_maxrss * 1024, output="".join(lines))


def allocator():
    """What PyTorch gets: tcmalloc where the loader finds it."""
    if os.environ.get("TCMALLOC") == "none":
        return ""
    return os.environ.get("PRELOAD") or ctypes.util.find_library("tcmalloc_minimal") or \
        ctypes.util.find_library("tcmalloc") or ""


def best_environment():
    """Freeing and touching memory again costs PyTorch up to half its speed: these are the best settings known."""
    environment = dict(os.environ, THP_MEM_ALLOC_ENABLE="1", MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(2**40))
    if allocator():
        environment["LD_PRELOAD"] = allocator()
    return environment


def used_by_others():
    """Processors in use over a second in which this process sleeps; a virtual machine's that its host took are, too."""
    def ticks():
        with open("/proc/stat") as f:
            user, nice, system, _, _, interrupts, soft, stolen = map(int, f.readline().split()[1:9])
        return user + nice + system + interrupts + soft + stolen

    begin, before = time.perf_counter(), ticks()
    time.sleep(1)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - begin)


def expect_quiet(patience=60):
    """Ends the benchmark (75: try again later) unless three seconds of `patience` in a row are quiet."""
    quiet = 0
    for _ in range(patience):
        used = used_by_others()
        quiet = quiet + 1 if used < BUSY else 0
        if quiet == 3:
            return
    print(f"other processes use {used:.1f} of {os.cpu_count()} processors (load {os.getloadavg()[0]:.1f}): nothing is "
          "measured; end them, or give --busy for figures that rank nothing", file=sys.stderr)
    sys.exit(75)


def say_busy():
    """The first line of a benchmark with --busy."""
    print(f"--busy: measured beside other work, these figures rank nothing (others use {used_by_others():.1f} of "
          f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f})", flush=True)


def check_losses(ours, theirs, bound, peer="PyTorch"):
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not math.isclose(a, b, rel_tol=bound):
            sys.exit(f"step {step + 1}: the losses differ by more than {bound}, llmtrain {a}, {peer} {b}")


def median(results, name, key):
    return statistics.median(result[key] for result in results[name])


def smallest(results, names):
    """Of the names, the one with the least memory."""
    return min(names, key=lambda name: median(results, name, "peak"), default=None)


def play(programs, rounds, busy, check, same_state, kept=()):
    """Runs `programs` (name: function that returns speed, peak and losses; llmtrain is one) in turn in every round, and
    returns their results by name. One that fails in the first round is left out; then check(results) ends the benchmark
    if losses differ, and those go on that are kept, or were the fastest or within a tenth of that, and of those with the
    same state as llmtrain the smallest."""
    results = {name: [] for name in programs}
    print(f"{'round':<6} {'program':<26} {'tokens/s':>10} {'peak GiB':>9}   losses of the first and last step")
    for number in range(1, rounds + 1):
        if not busy:
            expect_quiet()
        for name in list(results):
            try:
                r = programs[name]()
            except Failed as error:
                if name == "llmtrain" or number > 1 or len(results) <= 2:
                    sys.exit(str(error))
                print(f"{number:<6} {name:<26} is left out, as it {error}", flush=True)
                del results[name]
                continue
            results[name].append(r)
            losses = f"{r['losses'][0]:.5f} {r['losses'][-1]:.5f}" if r["losses"] else ""
            print(f"{number:<6} {name:<26} {r['speed']:10.1f} {r['peak'] / 2**30:9.2f}   {losses}", flush=True)
        if number == 1:
            peers = [name for name in results if name != "llmtrain"]
            check(results)
            near = 0.9 * max(median(results, name, "speed") for name in peers)  # one round does not tell which is faster
            small = smallest(results, filter(same_state, peers))
            results = {name: results[name] for name in results if name in ("llmtrain", small, *kept)
                       or median(results, name, "speed") > near}
    return results
