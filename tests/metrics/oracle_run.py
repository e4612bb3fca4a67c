"""Runs for the oracle tests of the sinks: a tiny deck, killed where a test says."""

import os
import pathlib
import signal
import subprocess
import time

DECK = """
[run]
max_steps = 300
output = runs
[model]
d_model = 16
n_layers = 2
n_heads = 2
[data]
train = text.txt
[batch]
sequence_length = 16
global = 4
[evaluation]
every_steps = 20
[checkpoint]
every_steps = 40
[log]
every_steps = 5
samples_every_steps = 40
sample_prompts = Line 1, Line 2
sample_length = 8
"""


def prepare(folder):
    os.chdir(folder)
    lines = [f"Line {i * i % 71} has some words to train on.\n" for i in range(40)]
    pathlib.Path("text.txt").write_text("".join(lines))
    pathlib.Path("deck.ini").write_text(DECK)


def start(llmtrain, name, sinks, *overrides):
    return subprocess.Popen([llmtrain, "deck.ini", f"run.name={name}", f"log.sinks={sinks}", *overrides],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run(llmtrain, name, sinks, *overrides):
    job = start(llmtrain, name, sinks, *overrides)
    _, errors = job.communicate()
    assert job.returncode == 0, errors
    assert "continues without" not in errors, errors


def run_until(llmtrain, name, sinks, step, *overrides):
    """Kills the job when it has done `step` steps. Returns whether it was killed."""
    ledger = pathlib.Path("runs") / name / "ledger.jsonl"
    job = start(llmtrain, name, sinks, *overrides)
    while job.poll() is None:
        text = ledger.read_text() if ledger.exists() else ""
        if f'{{"step":{step},' in text and f'"step":{step - 1},' in text:
            job.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    job.communicate()
    return job.returncode == -signal.SIGKILL
