"""What `wandb sync` of the pinned version sends of a run, to a server on the loopback: configuration at the start, every
step once under one run ID however often the job was killed and synced, summary, samples, files and the end.
Usage: wandb_oracle.py LLMTRAIN."""

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
    assert config["model"]["d_model"] == 16 and config["batch"]["global"] == 4, config
    assert config["log"]["sample_prompts"] == "Line 1, Line 2", config["log"]
    assert run["params"]["displayName"] == "named" and run["params"]["tags"] == ["a", "b"], run["params"]
    assert run["params"]["groupName"] == "seeds" and run["params"]["project"] == "stories", run["params"]
    assert b"d_model = 16" in run["files"]["deck.ini"]


def check_rows(run, folder):
    with open(folder / "metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    train = {r["step"]: r for r in lines if "loss_mean" in r}
    assert list(run["rows"]) == list(train) == [1] + list(range(5, 301, 5)), list(run["rows"])
    for step, row in run["rows"].items():
        assert math.isclose(row["train/loss"], train[step]["loss_mean"], rel_tol=1e-12), row
    checks = {r["step"]: r["validation_loss"] for r in lines if "validation_loss" in r}
    assert {s: r["validation/loss"] for s, r in run["rows"].items() if "validation/loss" in r} == checks
    samples = [[r["step"], r["prompt"], r["sample"]] for r in lines if "sample" in r]
    tables = [r["samples"] for r in run["rows"].values() if "samples" in r]
    shown = [row for table in tables for row in json.loads(run["files"][table["path"]])["data"]]
    assert shown == samples and len(samples) > 10, shown
    assert sum(run["rows"][300]["histograms/grad_norm"]["values"]) == 5
    assert run["exit"] == 0, run["exit"]
    summary = run["summary"]
    assert summary["_step"] == 300 and summary["train/loss"] == run["rows"][300]["train/loss"], summary
    assert summary["validation/best_loss"] == min(checks.values()), summary


def main():
    pinned = re.search(r'wandb_version = "(.*)"',
                       (pathlib.Path(__file__).parent / "../../src/metrics/wandb_log.hpp").read_text()).group(1)
    if wandb.__version__ != pinned:
        print(f"wandb {wandb.__version__} is here, and the files follow {pinned}")
    llmtrain = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as work:
        oracle_run.prepare(work)
        runs = pathlib.Path(work) / "runs"
        job = ("jsonl, wandb", "wandb.name=named", "wandb.project=stories", "wandb.tags=a, b", "wandb.group=seeds")
        killed = wandb_stub.Stub()
        for step in (47, 131, 133, 222):
            assert oracle_run.run_until(llmtrain, "killed", job[0], step, *job[1:]), "the job ended before it was killed"
            sync(killed, runs / "killed")
            run = sent(killed)
            check_config(run)  # of a run that goes on
            assert run["exit"] == 1, "a file without an end is a failed run so far"
        oracle_run.run(llmtrain, "killed", *job)
        sync(killed, runs / "killed")
        run = sent(killed)
        check_config(run)
        check_rows(run, runs / "killed")
        assert "No runs to sync" in sync(killed, runs / "killed"), "nothing is new"

        oracle_run.run(llmtrain, "whole", *job)
        whole = wandb_stub.Stub()
        sync(whole, runs / "whole")
        other = sent(whole)
        check_rows(other, runs / "whole")
        assert set(killed.runs) != set(whole.runs), "another run directory is another run"
        losses = [[row["train/loss"] for row in r["rows"].values()] for r in (run, other)]
        assert losses[0] == losses[1]
        ledgers = [(runs / name / "ledger.jsonl").read_bytes() for name in ("killed", "whole")]
        assert ledgers[0] == ledgers[1]

        # Control: a damaged record is seen.
        path = next((runs / "whole/wandb").glob("*/*.wandb"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        path.with_suffix(".wandb.synced").unlink()
        damaged = wandb_stub.Stub()
        sync(damaged, runs / "whole")
        assert len(damaged.run(next(iter(damaged.runs)))["rows"]) < 61
    print(f"wandb {wandb.__version__} syncs one run with every step once, after 4 kills")


if __name__ == "__main__":
    main()
