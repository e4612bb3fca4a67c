#!/usr/bin/env python3
"""A long run of 2 ranks under kills, lost ranks, full disks and a polled dashboard.

soak.py LLMTRAIN LLMTOOL [--minutes 1440] [--kill-mean 180] [--full-every 900] [--polls 10] [--table FILE]

A job script submits the same command again and again until it finishes. Meanwhile, after times of an exponential
distribution, all of its processes are killed, or one rank is killed or stopped, as with a lost node; its file system is
filled up for some seconds now and then (where this process may mount one), and `llmtool serve` is asked for its pages
and its stream. One undisturbed rank runs beside it. Expects: the job finishes without anything else done by hand; its
ledger is that of the undisturbed rank, byte for byte; memory of ranks and server grows by less than 1 MiB an hour (from
an hour on; see `growth`); their numbers of open files and threads stay. Environment: MPIRUN (mpirun). Exit codes: 0, 1
something went wrong, 64 command line.
"""
import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
WARM_UP = 300.0  # seconds of a process before its memory is looked at: its first evaluation and save
DECK = """
[run]
[model]
family = llama
d_model = 64
n_layers = 2
n_heads = 2
dropout = 0.1
[data]
train = builtin:stories
validation_fraction = 0.05
tokenizer = char
document_separator = blank_line
[batch]
sequence_length = 128
micro = 2
global = 4
[evaluation]
every_steps = 400
[log]
every_steps = 20
[checkpoint]
every_steps = 200
[watchdog]
lost_after = 30s
"""


class Disk:
    """A small file system for the run, which can be filled up; a plain folder where it cannot be mounted."""

    def __init__(self, folder, mebibytes):
        self.folder = folder
        folder.mkdir()
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder],
                                      stderr=subprocess.DEVNULL).returncode == 0

    def fill(self):
        with open(self.folder / "balloon", "wb", buffering=0) as balloon:
            try:
                while True:
                    balloon.write(bytes(4096))
            except OSError:
                pass

    def empty(self):
        (self.folder / "balloon").unlink(missing_ok=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "--lazy", self.folder], check=True)


class Usage:
    """Resident memory, open files and threads of the processes that it is shown, each life by itself."""

    def __init__(self):
        self.lives = {}  # (pid, start) -> [(seconds, KiB, files, threads)]

    def look(self, pid):
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, IndexError):
            return
        age = float(pathlib.Path("/proc/uptime").read_text().split()[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if fields[0] != "Z" and age > WARM_UP:
            life = self.lives.setdefault((pid, fields[19]), [])
            life.append((age, int(fields[21]) * PAGE_KIB, files, int(fields[17])))

    def growth(self):
        """MiB an hour: the slope that all lives share (least squares, with an offset for each)."""
        above = below = 0.0
        for samples in self.lives.values():
            mean_age = sum(age for age, *_ in samples) / len(samples)
            mean_size = sum(size for _, size, *_ in samples) / len(samples)
            above += sum((age - mean_age) * (size - mean_size) for age, size, *_ in samples)
            below += sum((age - mean_age) ** 2 for age, *_ in samples)
        return above / below * 3600 / 1024 if below > 0 else 0.0

    def rise(self, column):
        """The largest rise of a count between thirds of a life (fewest of each: saves have more for a moment)."""
        rise = 0
        for samples in self.lives.values():
            third = len(samples) // 3
            if third >= 5:
                fewest = [min(sample[column] for sample in part) for part in (samples[:third], samples[-third:])]
                rise = max(rise, fewest[1] - fewest[0])
        return rise

    def __str__(self):
        return f"{self.growth():+.2f} MiB an hour over {self.seconds():.0f} s"

    def seconds(self):
        return sum(samples[-1][0] - samples[0][0] for samples in self.lives.values())


def ranks_of(mark):
    """Processes of the program, known by an argument of theirs."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if mark.encode() in words and words[0].endswith(b"llmtrain"):
            found.append(int(folder.name))
    return found


class Poller(threading.Thread):
    """Asks the dashboard for a page or an event, `rate` times a second."""

    def __init__(self, port, rate):
        super().__init__(daemon=True)
        self.port, self.rate = port, rate
        self.asked = 0
        self.failures = []
        self.end = threading.Event()

    def run(self):
        paths = ("/", "/events?runs=0", "/dashboard.js", "/no/such/page")
        while not self.end.wait(1 / self.rate):
            self.asked += 1
            path = paths[self.asked % len(paths)]
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                    answer.read1(256)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    self.failures.append(f"{path}: {error}")
            except OSError as error:
                self.failures.append(f"{path}: {error}")


class Soak:
    def __init__(self, arguments, work):
        self.arguments = arguments
        self.work = work
        self.deck = work / "deck.ini"
        self.deck.write_text(DECK)
        self.random = random.Random(1)
        self.strikes = {"job": 0, "rank": 0, "stop": 0}
        self.full = self.starts = 0
        self.codes = {}
        self.wrong = []
        self.quiet, self.ranks, self.server = Usage(), Usage(), Usage()

    def command(self, ranks, steps, *settings):
        launch = os.environ.get("MPIRUN", "mpirun").split() + ["--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        return (launch if ranks > 1 else []) + [
            self.arguments.llmtrain, str(self.deck), f"run.max_steps={steps}", f"data.cache={self.work}/cache", *settings]

    def undisturbed(self, steps, name, *settings):
        command = self.command(1, steps, f"run.output={self.work}", f"run.name={name}", *settings)
        begin = time.monotonic()
        log = self.work / f"{name}.out"
        with open(log, "wb") as output:
            run = subprocess.Popen(command, stdout=output, stderr=output)
        while run.poll() is None:
            self.quiet.look(run.pid)
            time.sleep(0.5)
        if run.returncode != 0:
            self.wrong.append(f"an undisturbed run failed:\n{log.read_text()[-3000:]}")
            return b"", time.monotonic() - begin
        return (self.work / name / "ledger.jsonl").read_bytes(), time.monotonic() - begin

    def strike(self, job, mark):
        """Kills all processes of the job, or kills or stops one rank, if there is one already."""
        kind, ranks = self.random.choice(sorted(self.strikes)), ranks_of(mark)
        if kind == "job":
            os.killpg(job.pid, signal.SIGKILL)
        elif len(ranks) < 2:
            return False
        else:
            ranks = [self.random.choice(ranks)]
        for pid in ranks:
            try:
                os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.strikes[kind] += 1
        return True

    def submit(self, steps, disk):
        """One start of the job: returns its exit code."""
        mark = f"run.output={disk.folder}"
        self.starts += 1
        log = open(self.work / "job.log", "ab")
        job = subprocess.Popen(self.command(2, steps, mark, "run.name=soak"), stdout=log, stderr=log,
                               start_new_session=True)
        strike_at = time.monotonic() + self.random.expovariate(1 / self.arguments.kill_mean)
        struck = False
        while job.poll() is None:
            time.sleep(0.5)
            self.server.look(self.serving.pid)
            for pid in ranks_of(mark):
                self.ranks.look(pid)
            if disk.mounted and time.monotonic() > self.full_at:
                disk.fill()
                self.full += 1
                self.full_at = time.monotonic() + self.arguments.full_every
                self.empty_at = time.monotonic() + 8
            if time.monotonic() > self.empty_at:
                disk.empty()
            if not struck and time.monotonic() > strike_at:
                struck = self.strike(job, mark)
        return job.returncode

    def disturbed(self, steps, disk):
        """Submits until the job finishes; returns its ledger."""
        self.full_at = time.monotonic() + self.arguments.full_every / 2
        self.empty_at = float("inf")
        last = time.monotonic() + 60 * 10 * self.arguments.minutes
        while True:
            code = self.submit(steps, disk)
            self.codes[code] = self.codes.get(code, 0) + 1
            if code == 0:
                return (disk.folder / "soak" / "ledger.jsonl").read_bytes()
            if time.monotonic() > last:
                self.wrong.append("the job did not finish in ten times its time")
                return b""
            time.sleep(2)
            if time.monotonic() > self.empty_at:
                disk.empty()

    def expect(self, holds, what):
        if not holds:
            self.wrong.append(what)

    def run(self):
        _, seconds = self.undisturbed(400, "rate")
        steps = max(600, int(400 / seconds * 60 * self.arguments.minutes / 200) * 200)
        control, _ = self.undisturbed(400, "control", "run.seed=7")
        expected = []
        quiet = threading.Thread(target=lambda: expected.extend(self.undisturbed(steps, "undisturbed")))
        quiet.start()
        disk = Disk(self.work / "disk", 48)
        self.serving = subprocess.Popen([self.arguments.llmtool, "serve", str(disk.folder), "--port", "0"],
                                        stdout=subprocess.PIPE, text=True)
        try:
            port = int(self.serving.stdout.readline().rsplit(":", 1)[1].split("/")[0])
            poller = Poller(port, self.arguments.polls)
            poller.start()
            ledger = self.disturbed(steps, disk)
            poller.end.set()
            poller.join()
            self.expect(self.serving.poll() is None, "the dashboard has ended")
        finally:
            self.serving.kill()
            self.serving.wait()
            disk.close()
        quiet.join()
        self.expect(not expected[0].startswith(control[:2000]), "the control has the same ledger")
        self.judge(ledger == expected[0], poller)
        kills = self.strikes["job"] + self.strikes["rank"]
        return (f"| Soak of 2 ranks: kills, lost ranks, full disks, dashboard polled | {sum(self.strikes.values()) + self.full} "
                f"({self.full} full disks, {kills} kills, {self.strikes['rank']} of one rank, {self.strikes['stop']} ranks "
                f"stopped) | {len(self.wrong)} | {steps} steps, {self.starts} starts, exit codes "
                f"{', '.join(f'{code}: {n}' for code, n in sorted(self.codes.items()))}; ranks {self.ranks}, undisturbed "
                f"rank {self.quiet}, server {self.server}; {poller.asked} requests |")

    def judge(self, equal, poller):
        self.expect(equal, "another ledger than that of an undisturbed rank")
        self.expect(set(self.codes) <= {0, 73, 74, 76, -signal.SIGKILL, 128 + signal.SIGKILL}, f"exit codes {self.codes}")
        self.expect(not poller.failures, f"{len(poller.failures)} of {poller.asked} requests failed: {poller.failures[:3]}")
        for name, usage in (("a rank", self.ranks), ("the undisturbed rank", self.quiet), ("the server", self.server)):
            for column, what in ((2, "open files"), (3, "threads")):
                self.expect(usage.rise(column) == 0, f"{name} has {usage.rise(column)} more {what}")
            if usage.seconds() >= 3600:
                self.expect(usage.growth() < 1, f"{name} grows by {usage.growth():.2f} MiB an hour")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain")
    parser.add_argument("llmtool")
    parser.add_argument("--minutes", type=float, default=1440, help="of the undisturbed run")
    parser.add_argument("--kill-mean", type=float, default=180, help="seconds between kills, on average")
    parser.add_argument("--full-every", type=float, default=900, help="seconds between full disks")
    parser.add_argument("--polls", type=float, default=10, help="requests a second")
    parser.add_argument("--table", help="file that the row of the results is added to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        soak = Soak(arguments, pathlib.Path(name))
        row = f"{soak.run()} {time.monotonic() - begin:.0f} s |"
    print(row)
    for what in soak.wrong:
        print(f"FAILED: {what}", file=sys.stderr)
    if arguments.table:
        with open(arguments.table, "a", encoding="utf-8") as table:
            table.write(row + "\n")
    sys.exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
