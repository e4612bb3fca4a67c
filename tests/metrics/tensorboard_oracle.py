"""What TensorBoard reads of a run: every step once, with the values of the metrics, however often the job was killed;
text samples, histograms, hyperparameters. Usage: tensorboard_oracle.py LLMTRAIN. Made with tensorboard 2.21.0."""

import json
import math
import pathlib
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

import oracle_run

EVERYTHING = {"scalars": 0, "tensors": 0, "histograms": 0}


def accumulator(folder):
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance=EVERYTHING)
    events.Reload()
    return events


def values(events, tag):
    return [(e.step, e.value) for e in events.Scalars(tag)]


def lines(folder):
    with open(folder / "metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def check_against_metrics(folder, events):
    """metrics.jsonl has each step once, too: it is cut back when a run resumes."""
    rows = lines(folder)
    train = [r for r in rows if "loss_mean" in r]
    assert [r["step"] for r in train] == [1] + list(range(5, 301, 5))
    for tag, key in {"train/loss": "loss_mean", "train/grad_norm": "grad_norm",
                     "train/learning_rate": "learning_rate", "seconds/step": None}.items():
        found = values(events, tag)
        assert [step for step, _ in found] == [r["step"] for r in train], (tag, found)
        for (_, value), row in zip(found, train):
            assert key is None or math.isclose(value, row[key], rel_tol=1e-6), (tag, value, row)
    checks = [r for r in rows if "validation_loss" in r]
    assert [step for step, _ in values(events, "validation/loss")] == [r["step"] for r in checks]
    samples = [(r["step"], r["prompt"] + r["sample"]) for r in rows if "sample" in r]
    shown = sorted((e.step, tag, e.tensor_proto.string_val[0].decode()) for tag in ("samples/1", "samples/2")
                   for e in events.Tensors(tag))
    assert [(step, "    " + text.replace("\n", "\n    ")) for step, text in samples] == [
        (step, text) for step, _, text in shown]
    norms = events.Histograms("histograms/grad_norm")
    assert [h.step for h in norms] == [r["step"] for r in train]
    # A histogram of a job that was killed misses the steps before its checkpoint, of which there are none here.
    assert [h.histogram_value.num for h in norms] == [1, 4] + [5] * 59


def check_hyperparameters(folder):
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    metadata = context.hparams_metadata(RequestContext(), "")
    experiment = get_experiment.Handler(RequestContext(), context, "", api_pb2.GetExperimentRequest()).run()
    names = {info.name for info in experiment.hparam_infos}
    assert {"model.d_model", "batch.sequence_length", "run.max_steps"} <= names, names
    assert "log.every_steps" not in names and "optimizer.beta1" not in names, names
    request = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_SUCCESS],
        col_params=[api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos] +
        [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos])
    groups = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
    assert len(groups) == 1, groups
    assert groups[0].hparams["model.d_model"].number_value == 16
    metrics = {m.name.tag: m for m in groups[0].metric_values}
    assert metrics["train/loss"].training_step == 300, metrics["train/loss"]
    assert len(metadata) == 1


def tear(folder):
    """Leaves half of the last record, as a full disk or a power failure may. Returns whether there was a record."""
    path = sorted((folder / "tensorboard").iterdir())[-1]
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    return len(data)


def main():
    llmtrain = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as work:
        oracle_run.prepare(work)
        runs = pathlib.Path("runs")
        sinks = "jsonl, tensorboard"
        oracle_run.run(llmtrain, "whole", sinks)
        whole = accumulator(runs / "whole")
        check_against_metrics(runs / "whole", whole)
        check_hyperparameters(runs / "whole")

        watched = None
        for step in (47, 131, 133, 222):
            assert oracle_run.run_until(llmtrain, "killed", sinks, step), "the job ended before it was killed"
            if watched is None:
                watched = accumulator(runs / "killed")
            watched.Reload()  # as a TensorBoard that is open all the time
            tear(runs / "killed")
        oracle_run.run(llmtrain, "killed", sinks)
        killed = accumulator(runs / "killed")
        check_against_metrics(runs / "killed", killed)
        check_hyperparameters(runs / "killed")
        watched.Reload()
        for tag in ("train/loss", "validation/loss", "train/grad_norm"):
            assert values(killed, tag) == values(whole, tag), tag
            assert values(watched, tag) == values(whole, tag), tag
        assert len(list((runs / "killed/tensorboard").iterdir())) > 1

        oracle_run.run(llmtrain, "plain", "jsonl")
        ledgers = [(runs / name / "ledger.jsonl").read_bytes() for name in ("whole", "killed", "plain")]
        assert ledgers[0] == ledgers[1] == ledgers[2]

        # Control: another run's curve differs, and a damaged file loses the events behind the damage.
        oracle_run.run(llmtrain, "other", sinks, "run.seed=7")
        assert values(accumulator(runs / "other"), "train/loss") != values(whole, "train/loss")
        path = next((runs / "other/tensorboard").iterdir())
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert len(values(accumulator(runs / "other"), "train/loss")) < 61
    print("TensorBoard reads every step once, after 4 kills")


if __name__ == "__main__":
    main()
