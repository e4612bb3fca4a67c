#!/usr/bin/env python3
"""Reads what a run has left, with h5py alone (Debian: python3-h5py).

    read_run.py RUN                       what is there, in a few lines
    read_run.py RUN --tensor NAME         one parameter and its moments
    read_run.py RUN --compare DIR         every parameter against DIR/*.safetensors (fp32, by `llmtool export`)

RUN is a run's folder, runs/<name>, or one of its checkpoints, runs/<name>/checkpoints/step-XXXXXXXX.

In a checkpoint, view.h5 shows every tensor whole under its Hugging Face name, however many ranks have written it:
    /master/NAME   fp32 parameter
    /m/NAME /v/NAME   first and second moment of AdamW
It holds no data itself (virtual datasets over shard-*.h5), so it must stay beside the shards. Where the attribute
`transposed` of a tensor is 1, the file has the transpose of Hugging Face's matrix.
A checkpoint is verified by `llmtool verify`, not here: HDF5 reads a damaged file without noticing.
"""

import argparse
import json
import pathlib
import struct
import sys

import h5py
import numpy


def checkpoint_of(folder):
    """The folder itself if it is a checkpoint, else the newest one of the run."""
    if (folder / "view.h5").exists():
        return folder
    found = sorted((folder / "checkpoints").glob("step-*"))
    if not found:
        sys.exit(f"{folder}: no checkpoints/step-* here")
    return found[-1]


def parameters(view):
    """Names, in the order of the file."""
    names = []
    view["master"].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def tensor(view, kind, name):
    """As Hugging Face stores it."""
    dataset = view[kind][name]
    values = dataset[...]
    return values.T if dataset.attrs["transposed"] else values


def columns_of(group):
    """Names and datasets of a table. A name with a slash, such as rewards/chosen or node1/cpu_percent, lies in groups."""
    columns = {}
    group.visititems(lambda name, item: columns.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return columns


def show_metrics(run):
    """Every table of metrics.h5 has one row an entry, one dataset a column, all fp64."""
    if not (run / "metrics.h5").exists():
        return
    with h5py.File(run / "metrics.h5", "r") as metrics:
        for table, group in metrics.items():
            columns = columns_of(group)
            steps = columns["step"][...]
            print(f"metrics.h5: {table}: {len(steps)} rows of {', '.join(columns)}")
            if "loss" not in columns:
                continue  # a table of nodes or ranks
            loss = columns["loss"][...]
            known = numpy.flatnonzero(~numpy.isnan(loss))  # a step without a target has no loss
            if len(known):
                first, last = known[0], known[-1]
                print(f"  loss {loss[first]:.4f} at step {steps[first]:.0f}, {loss[last]:.4f} at step {steps[last]:.0f}")


def show_checkpoint(path):
    manifest = json.loads((path / "manifest.json").read_text())["manifest"]
    print(f"{path}: step {manifest['step']}, {manifest['program']}")
    with h5py.File(path / "view.h5", "r") as view:
        for name in parameters(view):
            weight, m, v = (tensor(view, kind, name) for kind in ("master", "m", "v"))
            print(f"  {name} {list(weight.shape)}: rms {numpy.sqrt(numpy.mean(weight.astype(float) ** 2)):.3e}, "
                  f"m {numpy.abs(m).mean():.3e}, v {v.mean():.3e}")


def safetensors(folder):
    """Name and array of every tensor in F32."""
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__" and entry["dtype"] == "F32":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                yield name, numpy.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])


def compare(path, folder):
    """Exit code 1 unless both have the same tensors with the same bits."""
    with h5py.File(path / "view.h5", "r") as view:
        names, different = set(parameters(view)), []
        exported = dict(safetensors(folder))
        for name in sorted(names & exported.keys()):
            mine = tensor(view, "master", name)
            if mine.shape != exported[name].shape or mine.tobytes() != exported[name].tobytes():
                different.append(name)
    missing = sorted(names ^ exported.keys())
    print(f"{len(names)} parameters, {len(different)} different, {len(missing)} on one side only")
    if different or missing:
        sys.exit(f"different: {different}, on one side only: {missing}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--tensor")
    parser.add_argument("--compare", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    path = checkpoint_of(options.run)
    if options.compare:
        compare(path, options.compare)
    elif options.tensor:
        with h5py.File(path / "view.h5", "r") as view:
            for kind in ("master", "m", "v"):
                print(f"{kind}:\n{tensor(view, kind, options.tensor)}")
    else:
        show_checkpoint(path)
        show_metrics(options.run)


if __name__ == "__main__":
    main()
