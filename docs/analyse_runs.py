#!/usr/bin/env python3
"""Analyses runs with h5py, pandas and matplotlib (Debian: python3-h5py python3-pandas python3-matplotlib).

    analyse_runs.py curves RUN... --output curves.png [--columns train/loss,validation/loss]
    analyse_runs.py seeds RUN... --output seeds.png [--column validation/loss]     mean and standard deviation over seeds
    analyse_runs.py parallel RUN... --output sweep.png [--result validation/loss]  what the runs' decks differ in, and results
    analyse_runs.py spectra RUN|CHECKPOINT... --output spectra.png [--match TEXT]  singular values of the matrices

A RUN is a folder, runs/NAME; a column is TABLE/NAME of its metrics.h5. The output's ending gives the format (png, svg, pdf). The
functions return pandas' tables, so that a notebook can use them: from analyse_runs import metrics, settings.
"""

import argparse
import math
import pathlib
import re

import h5py
import matplotlib
import numpy
import pandas

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of what draws)

NOT_SETTINGS = ("run.name", "run.output", "run.seed", "data.seed")


def metrics(run, table):
    """A table of metrics.h5 with the steps as index; of a step that was done again the last row counts."""
    columns = {}
    path = pathlib.Path(run) / "metrics.h5"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file (a run has it with hdf5 in log.sinks)")
    with h5py.File(path, "r") as file:
        if table not in file:
            raise SystemExit(f"{run}/metrics.h5: no table {table}, only {', '.join(file)}")

        def visit(name, item):  # rewards/chosen lies in a group
            if isinstance(item, h5py.Dataset):
                columns[name] = item[...]
        file[table].visititems(visit)
    frame = pandas.DataFrame(columns)
    frame["step"] = frame["step"].astype(int)
    return frame.drop_duplicates("step", keep="last").set_index("step").sort_index()


def series(run, column):
    """The values of TABLE/NAME by step, without missing ones."""
    table, _, name = column.partition("/")
    frame = metrics(run, table)
    if name not in frame:
        raise SystemExit(f"{run}/metrics.h5: {table} has no column {name}, only {', '.join(frame)}")
    return frame[name].dropna()


def deck(run):
    """The resolved deck: a row for each key, section.key, with its value and where it comes from."""
    rows, section, comment, last = {}, "", "", None
    for line in (pathlib.Path(run) / "deck.ini").read_text(encoding="utf-8").splitlines():
        if head := re.fullmatch(r"\[(\w+)\].*", line):
            section = head[1]
        elif line.startswith("#"):
            comment = line[1:].strip()
        elif line.startswith(" ") and last:  # a list, or after a backslash a text, goes on
            value = last["value"]
            last["value"] = (value[:-1] if value.endswith("\\") else value + " ") + line.strip()
        elif entry := re.fullmatch(r"(\w+) = (.*?)(?:\s*; (.*))?", line):
            # A long value has its origin in the line before.
            last = rows[f"{section}.{entry[1]}"] = {"value": entry[2], "origin": entry[3] or comment}
    return pandas.DataFrame.from_dict(rows, orient="index")


def settings(runs):
    """A row for each run, a column for each key that a deck or a command line gives and in which the runs differ, but for
    names and seeds."""
    all_decks = {str(run): deck(run) for run in runs}
    given = {key for frame in all_decks.values() for key in frame.index[frame["origin"].isin(["deck", "command line"])]}
    frame = pandas.DataFrame({run: frame["value"] for run, frame in all_decks.items()}).T
    frame = frame[[key for key in frame if key in given and key not in NOT_SETTINGS]]
    return frame.loc[:, frame.nunique(dropna=False) > 1].fillna("not used")


def best(run, column, highest=False):
    values = series(run, column)
    return math.nan if values.empty else values.max() if highest else values.min()


def save(figure, output):
    figure.tight_layout()
    figure.savefig(output, dpi=150)
    print(f"{output} is written")


def curves(options):
    columns = options.columns.split(",")
    figure, axes = plt.subplots(len(columns), 1, figsize=(8, 3.2 * len(columns)), squeeze=False)
    for axis, column in zip(axes[:, 0], columns):
        for run in options.runs:
            values = series(run, column)
            axis.plot(values.index, values, label=run.name, marker="." if len(values) < 30 else None)
        axis.set(xlabel="step", ylabel=column)
        axis.legend()
    save(figure, options.output)


def seeds(options):
    """Runs whose decks differ in names and seeds alone share a curve: their mean, and a band of one standard deviation."""
    different = settings(options.runs)
    groups = {}
    for run in options.runs:
        label = ", ".join(f"{key} = {value}" for key, value in different.loc[str(run)].items()) or "all runs"
        groups.setdefault(label, []).append(series(run, options.column))
    figure, axis = plt.subplots(figsize=(8, 4.5))
    table = {}
    for label, all_values in groups.items():
        frame = pandas.concat(all_values, axis=1)
        mean, deviation = frame.mean(axis=1), frame.std(axis=1, ddof=1).fillna(0)
        (line,) = axis.plot(mean.index, mean, label=f"{label} ({frame.shape[1]} runs)")
        axis.fill_between(mean.index, mean - deviation, mean + deviation, color=line.get_color(), alpha=0.2)
        table[label] = {"runs": frame.shape[1], "last mean": mean.iloc[-1], "last deviation": deviation.iloc[-1]}
    axis.set(xlabel="step", ylabel=options.column)
    axis.legend()
    print(pandas.DataFrame.from_dict(table, orient="index").to_string())
    save(figure, options.output)


def scaled(column):
    """Places of a setting's values from 0 to 1, and the texts at them. Numbers over decades are placed by their logarithm."""
    numbers = pandas.to_numeric(column, errors="coerce")
    if numbers.notna().all() and numbers.max() > numbers.min():
        logarithmic = numbers.min() > 0 and numbers.max() / numbers.min() >= 20
        places = numpy.log(numbers) if logarithmic else numbers
        places = (places - places.min()) / (places.max() - places.min())
    else:
        order = {value: place for place, value in enumerate(sorted(column.astype(str).unique()))}
        places = column.astype(str).map(order) / max(len(order) - 1, 1)
    return places, dict(zip(places, column.astype(str)))


def parallel(options):
    """Parallel coordinates: an axis for each setting in which the runs differ, the last one for the best result."""
    table = settings(options.runs)
    table[options.result] = [best(run, options.result, options.highest) for run in options.runs]
    print(table.sort_values(options.result, ascending=not options.highest).to_string())
    results = table[options.result]
    norm = plt.Normalize(results.min(), results.max())
    figure, axis = plt.subplots(figsize=(max(6, 2 * table.shape[1]), 4.5))
    all_places = []
    for at, name in enumerate(table):
        column = table[name] if name != options.result else results.map("{:.4g}".format)
        places, texts = scaled(column)
        all_places.append(places)
        axis.axvline(at, color="0.7", linewidth=1)
        for place, text in texts.items():
            axis.annotate(text, (at, place), xytext=(4, 0), textcoords="offset points", fontsize=8, va="center",
                          bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}, zorder=3)
    for row, result in enumerate(results):
        axis.plot([places.iloc[row] for places in all_places], color=plt.cm.viridis(norm(result)), alpha=0.8)
    axis.set_xticks(range(table.shape[1]), table.columns, rotation=20, ha="right")
    axis.set_xlim(-0.1, table.shape[1] - 0.6)
    axis.set_yticks([])
    figure.colorbar(plt.cm.ScalarMappable(norm=norm, cmap="viridis"), ax=axis, label=options.result)
    save(figure, options.output)


def checkpoints_of(path):
    """The folder itself if it is a checkpoint, else all that the run has kept."""
    if (path / "view.h5").exists():
        return [path]
    found = sorted((path / "checkpoints").glob("step-*"))
    if not found:
        raise SystemExit(f"{path}: no checkpoints/step-* here")
    return found


def singular_values(checkpoint, match=""):
    """Singular values, largest first, of each matrix of a checkpoint whose name contains `match`."""
    spectra = {}
    with h5py.File(checkpoint / "view.h5", "r") as view:
        def visit(name, item):
            if isinstance(item, h5py.Dataset) and item.ndim == 2 and match in name:
                spectra[name] = numpy.linalg.svd(item[...].astype(float), compute_uv=False)
        view["master"].visititems(visit)
    return spectra


def spectra(options):
    rows, figure = [], None
    all_checkpoints = [checkpoint for path in options.runs for checkpoint in checkpoints_of(path)]
    for number, checkpoint in enumerate(all_checkpoints):
        found = singular_values(checkpoint, options.match)
        if not found:
            raise SystemExit(f"{checkpoint}: no matrix has '{options.match}' in its name")
        if figure is None:
            columns = math.ceil(math.sqrt(len(found)))
            figure, axes = plt.subplots(math.ceil(len(found) / columns), columns, figsize=(3.6 * columns, 3 * math.ceil(len(found) / columns)), squeeze=False)
            for axis in axes.flat[len(found):]:
                axis.set_axis_off()
        for axis, (name, values) in zip(axes.flat, found.items()):
            axis.loglog(numpy.arange(1, len(values) + 1), values, color=plt.cm.viridis(number / max(len(all_checkpoints) - 1, 1)), label=checkpoint.name)
            axis.set_title(name, fontsize=7)
            rows.append({"checkpoint": checkpoint.name, "matrix": name, "largest": values[0], "stable rank": (values**2).sum() / values[0] ** 2})
    axes.flat[0].legend(fontsize=6)
    print(pandas.DataFrame(rows).to_string(index=False))
    save(figure, options.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["curves", "seeds", "parallel", "spectra"])
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True)
    parser.add_argument("--columns", default="train/loss,validation/loss")
    parser.add_argument("--column", default="validation/loss")
    parser.add_argument("--result", default="validation/loss")
    parser.add_argument("--highest", action="store_true", help="the best result is the highest, as of accuracies and rewards")
    parser.add_argument("--match", default="")
    options = parser.parse_args()
    {"curves": curves, "seeds": seeds, "parallel": parallel, "spectra": spectra}[options.what](options)


if __name__ == "__main__":
    main()
