"""TensorBoard reads a run: every step once, with its value, however often the job was killed; text samples,
histograms, hyperparameters. Usage: tensorboard_oracle.py SINK_RUN. Written with tensorboard 2.21.0."""

import pathlib
import struct
import sys
import tempfile

from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups
from tensorboard.util import tensor_util

import oracle_run
from oracle_run import EVALUATIONS, SAMPLES, STEPS


def accumulator(folder):
    """All events, as TensorBoard's server reads them."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return events


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def near(found, expected):
    return len(found) == len(expected) and all(
        s == t and abs(a - b) < 1e-6 * abs(b) for (s, a), (t, b) in zip(found, expected))


def points(events, tag):
    return [(e.step, tensor_util.make_ndarray(e.tensor_proto).item()) for e in events.Tensors(tag)]


def counts(events, tag):
    """Numbers of the values in histograms, whose rows are begin, end and count of a bucket."""
    return [(e.step, tensor_util.make_ndarray(e.tensor_proto)[:, 2].sum()) for e in events.Tensors(tag)]


def texts(events):
    return [[(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(f"samples/{i}")] for i in (1, 2)]


def check(events):
    assert near(points(events, "train/loss"), [(s, oracle_run.mean_loss(s)) for s in STEPS]), points(events, "train/loss")
    assert points(events, "train/learning_rate") == [(s, fp32(0.001)) for s in STEPS]
    assert points(events, "train/grad_norm") == [(s, fp32(1 + s % 7 / 10)) for s in STEPS]
    assert points(events, "train/rewards/margins") == [(s, fp32(s / 10)) for s in STEPS]
    assert [s for s, _ in points(events, "seconds/step")] == STEPS
    validation = points(events, "validation/loss")
    assert near(validation, [(s, oracle_run.validation_loss(s)) for s in EVALUATIONS]), validation
    shown = [[(s, "    " + text.replace("\n", "\n    ")) for s in SAMPLES] for text in oracle_run.TEXTS]
    assert texts(events) == shown, texts(events)
    norms = counts(events, "histograms/grad_norm")
    assert norms == [(s, len(oracle_run.interval(s))) for s in STEPS], norms


def check_hyperparameters(folder):
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    metadata = context.hparams_metadata(RequestContext(), "")
    found = context.experiment_from_metadata(RequestContext(), "", True, metadata,
                                             context.hparams_from_data_provider(RequestContext(), "", 0))
    assert [info.name for info in found.hparam_infos] == ["model.d_model"], found.hparam_infos
    experiment = get_experiment.Handler(RequestContext(), context, "", api_pb2.GetExperimentRequest()).run()
    request = api_pb2.ListSessionGroupsRequest(
        allowed_statuses=[api_pb2.STATUS_SUCCESS], slice_size=10,
        col_params=[api_pb2.ColParams(hparam=info.name) for info in experiment.hparam_infos] +
        [api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos])
    groups = list_session_groups.Handler(RequestContext(), context, "", request).run().session_groups
    assert len(groups) == 1, groups
    assert groups[0].hparams["model.d_model"].number_value == 16
    metrics = {m.name.tag: m for m in groups[0].metric_values}
    assert metrics["train/loss"].training_step == 300, metrics


def tear(folder):
    """Leaves half of the last record, as a full disk or a power failure may."""
    path = sorted((folder / "tensorboard").iterdir())[-1]
    path.write_bytes(path.read_bytes()[:-7])


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as work:
        runs = pathlib.Path(work)
        oracle_run.run(program, runs / "whole", "tensorboard")
        whole = accumulator(runs / "whole")
        check(whole)
        check_hyperparameters(runs / "whole")

        watched = None
        for event in oracle_run.KILLS:
            oracle_run.run(program, runs / "killed", "tensorboard", event)
            watched = watched or accumulator(runs / "killed")
            watched.Reload()  # as a TensorBoard that is open all the time
            if event.startswith("kill"):
                tear(runs / "killed")
        oracle_run.run(program, runs / "killed", "tensorboard", "rollback:270")
        watched.Reload()
        check(watched)
        check(accumulator(runs / "killed"))
        older = event_accumulator.EventAccumulator(str(runs / "killed/tensorboard"), {"scalars": 0})
        older.Reload()
        assert [e.step for e in older.Scalars("train/loss")] == STEPS
        check_hyperparameters(runs / "killed")

        ledgers = []
        for name, sinks in (("plain", "jsonl"), ("all", "jsonl,tensorboard,wandb")):
            oracle_run.run(program, runs / name, sinks)
            ledgers.append((runs / name / "ledger.jsonl").read_bytes())
        assert ledgers[0] == ledgers[1] == (runs / "whole/ledger.jsonl").read_bytes()

        # Control: a damaged record ends what is read.
        path = next((runs / "whole/tensorboard").iterdir())
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert len(points(accumulator(runs / "whole"), "train/loss")) < len(STEPS)
    print(f"TensorBoard reads every step once, after {len(oracle_run.KILLS)} kills and a rollback")


if __name__ == "__main__":
    main()
