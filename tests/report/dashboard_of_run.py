#!/usr/bin/env python3
"""The dashboard that a run starts (dashboard.port) is there while it goes on, ends with it, and never harms it.

dashboard_of_run.py LLMTRAIN LLMTOOL
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(address):
    """Status and text of a page, or 0 if nobody answers."""
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


class Job:
    def __init__(self, program, folder, name, *overrides):
        self.run = folder / "runs" / name
        command = [program, str(folder / "deck.ini"), f"run.output={folder / 'runs'}", f"run.name={name}", *overrides]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.text = ""

    def read_until(self, words):
        while words not in self.text:
            line = self.process.stdout.readline()
            require(line, f"the run says '{words}': {self.text}")
            self.text += line
        return self

    def end(self):
        self.text += self.process.stdout.read()
        return self.process.wait(60)


def write_deck(folder):
    (folder / "text.txt").write_text("once upon a time there was a small fox. " * 400)
    (folder / "deck.ini").write_text(f"""[run]
max_steps = 40
[model]
family = llama
d_model = 32
n_layers = 1
n_heads = 2
[data]
train = {folder / 'text.txt'}
tokenizer = char
cache = {folder / 'cache'}
[batch]
sequence_length = 64
micro = 2
global = 4
[log]
every_steps = 5
""")


def processes_with(text):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and text.encode() in b" ".join(words):
            found.append(entry.parent)
    return found


def check_while_it_runs(llmtrain, folder):
    port = free_port()
    job = Job(llmtrain, folder, "shown", f"dashboard.port={port}", "run.max_steps=100000").read_until("step ")
    require(f"dashboard  http://127.0.0.1:{port}/" in job.text and "ssh -N -L" in job.text, f"the address is said: {job.text}")
    require(get(f"http://127.0.0.1:{port}/")[0] == 200, "the page is there")
    [child] = processes_with(str(job.run))
    nice = (child / "stat").read_text().rsplit(")", 1)[1].split()[16]
    require(nice == "19", f"the child has the lowest priority: {nice}")
    session = (child / "stat").read_text().rsplit(")", 1)[1].split()[3]
    require(session == child.name, "the child has a session of its own")
    open_files = sorted(int(f.name) for f in (child / "fd").iterdir())
    inherited = [f for f in open_files if "runs/shown/" in str((child / "fd" / str(f)).resolve())]
    require(inherited == [2], f"of the run the child has only dashboard.log open: {inherited}")
    job.process.kill()
    job.process.wait()
    deadline = time.monotonic() + 3
    while get(f"http://127.0.0.1:{port}/")[0] != 0:
        require(time.monotonic() < deadline, "the page ends with a killed run")
        time.sleep(0.05)


def check_lost(llmtrain, folder):
    job = Job(llmtrain, folder, "lost", f"dashboard.port={free_port()}", "run.max_steps=100000").read_until("step ")
    [child] = processes_with(str(job.run))
    require("has ended" not in job.text, "control")
    os.kill(int(child.name), signal.SIGKILL)
    job.read_until("the dashboard has ended")
    require(not child.exists(), "no zombie stays")
    job.process.send_signal(signal.SIGTERM)
    require(job.end() == 75, "the run goes on until it is stopped")


def check_token(llmtrain, folder):
    port = free_port()
    job = Job(llmtrain, folder, "token", f"dashboard.port={port}", "dashboard.address=0.0.0.0", "run.max_steps=100000")
    job.read_until("step ")
    token = re.search(r"\?token=([0-9a-f]{32})", job.text)
    require(token, f"the address with the token is said: {job.text}")
    require(get(f"http://127.0.0.1:{port}/")[0] == 403, "without the token there is no page")
    require(get(f"http://127.0.0.1:{port}/?token={token[1]}")[0] == 200, "with the token there is")
    job.process.send_signal(signal.SIGTERM)
    require(job.end() == 75, "the run stops as without a dashboard")
    require(get(f"http://127.0.0.1:{port}/")[0] == 0, "the page ends with a stopped run")


def check_failures(llmtrain, folder):
    plain = Job(llmtrain, folder, "plain")
    require(plain.end() == 0, plain.text)
    require("dashboard" not in plain.text, "without a port there is none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        job = Job(llmtrain, folder, "taken", f"dashboard.port={taken.getsockname()[1]}")
        require(job.end() == 0, "a port that is taken ends no run")
        require(len(re.findall("warning: .*another program uses it", job.text)) == 1, f"one warning: {job.text}")
    alone = folder / "alone"
    alone.mkdir()
    shutil.copy(llmtrain, alone / "llmtrain")
    job = Job(str(alone / "llmtrain"), folder, "alone", f"dashboard.port={free_port()}")
    require(job.end() == 0, "a missing program ends no run")
    require(len(re.findall("warning: .*llmtool: No such file", job.text)) == 1, f"one warning: {job.text}")
    ledgers = {(folder / "runs" / name / "ledger.jsonl").read_bytes() for name in ("plain", "taken", "alone")}
    require(len(ledgers) == 1, "the mathematics is the same")


def check_errors(llmtool, folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = subprocess.run([llmtool, "serve", folder / "runs", "--port", port], capture_output=True, text=True, timeout=20)
        require(said.returncode == 73 and f"port {port} of 127.0.0.1: another program uses it" in said.stderr, said.stderr)
    said = subprocess.run([llmtool, "serve", folder / "nothing"], capture_output=True, text=True, timeout=20)
    require(said.returncode == 66, said.stderr)
    said = subprocess.run([llmtool, "serve", folder / "runs", "--port", "70000"], capture_output=True, text=True, timeout=20)
    require(said.returncode == 64, said.stderr)


def main():
    llmtrain, llmtool = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_deck(folder)
        check_failures(llmtrain, folder)
        check_while_it_runs(llmtrain, folder)
        check_lost(llmtrain, folder)
        check_token(llmtrain, folder)
        check_errors(llmtool, folder)
    print("a run's dashboard comes and goes with it, and harms nothing")


if __name__ == "__main__":
    main()
