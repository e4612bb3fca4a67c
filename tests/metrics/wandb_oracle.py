"""`wandb sync` of the pinned version sends a run to a server on the loopback: configuration at the start, every
step once under one run ID however often the job was killed and synced, summary, samples, files and the end.
Usage: wandb_oracle.py SINK_RUN."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import wandb

import oracle_run
import wandb_stub
from oracle_run import EVALUATIONS, SAMPLES, STEPS


def sync(stub, folder):
    """With wandb-core, the program that reads the file."""
    settings = {"WANDB_BASE_URL": stub.url, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false",
                "WANDB_CONFIG_DIR": str(folder), "WANDB_CACHE_DIR": str(folder), "HOME": str(folder)}
    done = subprocess.run([sys.executable, "-m", "wandb", "sync", "--yes"], env={**os.environ, **settings}, text=True,
                          cwd=folder, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def sent(stub):
    """The only run, whose rows came in the order of steps at each sync."""
    assert len(stub.runs) == 1, list(stub.runs)
    assert not stub.unknown, stub.unknown
    run = next(iter(stub.runs.values()))
    steps = [row["_step"] for row in run["lines"]]
    run["lines"].clear()
    assert steps == sorted(set(steps)), steps
    run["rows"] = {step: run["rows"][step] for step in steps}
    return run


def check_config(run):
    config = {name: entry["value"] for name, entry in run["config"].items()}
    assert config["model"]["d_model"] == 16 and config["log"]["every_steps"] == 5, config
    params = run["params"]
    assert params["displayName"] == "sink_run" and params["tags"] == ["a", "b"], params
    assert params["groupName"] == "seeds" and params["project"] == "stories", params
    assert run["files"]["deck.ini"] == b"[model]\nd_model = 16\n"


def check_rows(run):
    rows = run["rows"]
    assert list(rows) == STEPS, list(rows)
    for step, row in rows.items():
        assert math.isclose(row["train/loss"], oracle_run.mean_loss(step), rel_tol=1e-12), row
        assert row["train/rewards/margins"] == step / 10, row
        assert sum(row["histograms/grad_norm"]["values"]) == len(oracle_run.interval(step)), row
    checks = {step: row["validation/loss"] for step, row in rows.items() if "validation/loss" in row}
    assert list(checks) == EVALUATIONS, checks
    tables = [row["samples"] for row in rows.values() if "samples" in row]
    shown = [json.loads(run["files"][table["path"]])["data"] for table in tables]
    assert [[[r[0], r[1] + r[2]] for r in rows] for rows in shown] == [
        [[step, text] for text in oracle_run.TEXTS] for step in SAMPLES], shown
    assert run["exit"] == 0, run["exit"]
    summary = run["summary"]
    assert summary["_step"] == 300 and summary["train/loss"] == rows[300]["train/loss"], summary
    assert summary["validation/best_loss"] == min(checks.values()), summary


def main():
    pinned = re.search(r'wandb_version = "(.*)"',
                       (pathlib.Path(__file__).parent / "../../src/metrics/wandb_log.hpp").read_text()).group(1)
    if wandb.__version__ != pinned:
        print(f"wandb {wandb.__version__} is here; the files follow {pinned}")
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as work:
        killed = pathlib.Path(work) / "killed"
        killed.mkdir()
        (killed / "deck.ini").write_text("[model]\nd_model = 16\n")
        stub = wandb_stub.Stub()
        for event in oracle_run.KILLS:
            oracle_run.run(program, killed, "wandb", event)
            sync(stub, killed)
            run = sent(stub)
            check_config(run)  # of a run that goes on
            assert run["exit"] == 1, "a file without an end is that of a failed run so far"
        oracle_run.run(program, killed, "wandb", "rollback:270")
        sync(stub, killed)
        run = sent(stub)
        check_config(run)
        check_rows(run)
        assert "No runs to sync" in sync(stub, killed), "nothing is new"

        # Control: a damaged record is seen.
        path = next((killed / "wandb").glob("*/*.wandb"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        path.with_suffix(".wandb.synced").unlink()
        damaged = wandb_stub.Stub()
        sync(damaged, killed)
        assert len(damaged.run(next(iter(damaged.runs)))["rows"]) < len(STEPS)
    print(f"wandb {wandb.__version__} syncs one run with every step once, after {len(oracle_run.KILLS)} kills")


if __name__ == "__main__":
    main()
