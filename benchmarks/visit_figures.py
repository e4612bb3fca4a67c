#!/usr/bin/env python3
"""visit_figures.py RUN NAME [ESTIMATE]: the speed and memory of a run as a line of JSON.

RUN is the folder of a run with log.every_steps = 1; ESTIMATE a file with the output of --estimate --json. Speed is of the median step of
the second half: profiled steps and recordings of graphs come before. Memory is the largest that the driver reported. Plain Python 3.
"""
import json
import os
import statistics
import sys


def largest(steps, suffix):
    """Over the GPUs of a node, whose columns are system/NODE/gpuN/SUFFIX."""
    values = [value for step in steps for name, value in step.items() if name.startswith("system/") and name.endswith("/" + suffix)]
    return max(values, default=None)


def main():
    run, name = sys.argv[1:3]
    with open(os.path.join(run, "metrics.jsonl")) as file:
        steps = [line for line in map(json.loads, file) if "tokens_per_second" in line]
    ends = [step["wall_time"] for step in steps]
    late = list(zip(steps, ends, [None] + ends))[(len(steps) + 1) // 2:] or list(zip(steps, ends, [None]))
    seconds = statistics.median(end - before if before is not None else end for _, end, before in late)
    figures = {"run": name, "steps": len(steps), "step_seconds": round(seconds, 6), "first_step_at": ends[0],
               "tokens_per_second": round(steps[-1]["tokens"] / seconds, 1), "loss": [steps[0]["loss"], steps[-1]["loss"]]}
    if "mfu" in steps[-1]:  # of the step that was logged, scaled to the median one
        figures["mfu"] = round(steps[-1]["mfu"] * figures["tokens_per_second"] / steps[-1]["tokens_per_second"], 4)
    for suffix in ("gpu0/memory_used_bytes", "gpu0/power_watts", "gpu0/clock_sm_mhz"):
        if largest(steps, suffix) is not None:
            figures[suffix.split("/")[1]] = largest(steps, suffix)
    if len(sys.argv) > 3:
        with open(sys.argv[3]) as file:
            text = file.read()
        figures["estimated_bytes"] = json.JSONDecoder().raw_decode(text[text.index("{"):])[0]["bytes_per_rank"]["total"]
        if "memory_used_bytes" in figures:
            figures["of_estimate"] = round(figures["memory_used_bytes"] / figures["estimated_bytes"], 3)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
