"""The run of sink_run_program.cpp, and the values that it logs."""

import math
import pathlib
import signal
import subprocess

STEPS = [1] + list(range(5, 301, 5))      # log intervals
EVALUATIONS = list(range(20, 301, 20))
SAMPLES = list(range(40, 301, 40))
TEXTS = ["Line 1\nis # one", "Line 2 \ufffd."]


def loss(step):
    return 3 * math.exp(-step / 100)


def interval(step):
    """The steps of the log interval that ends with a step."""
    return [1] if step == 1 else [s for s in range(step - 4, step + 1) if s > 1]


def mean_loss(step):
    return sum(map(loss, interval(step))) / len(interval(step))


def validation_loss(step):
    return 4 * math.exp(-step / 100)


def run(program, folder, sinks, event=None):
    """Runs to the end, or to the event, with which the process kills itself."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    done = subprocess.run([program, str(folder), sinks, *([event] if event else [])], capture_output=True, text=True)
    kills = event is not None and not event.startswith("rollback")
    assert done.returncode == (-signal.SIGKILL if kills else 0), done.stderr
    assert "continues without" not in done.stderr, done.stderr


# Kills between evaluations, twice from one checkpoint, after an evaluation that its checkpoint does not know of, and
# after a rollback.
KILLS = ["kill:47", "kill:131", "kill:133", "pending:160", "kill:222"]
