"""Distributions from Transformers' logits processors, for tests/generate/sampler_test.cpp.

Writes sampling/distributions.json: logits by name, and for each case the options, the ids that have occurred, and the
probabilities that generate() would draw from: the processors in its order, then softmax, in fp32 on the CPU. (Which of
equally probable tokens top-p leaves out is up to torch.sort, which is not stable.)
Made with torch 2.15.0, transformers 5.23.0, numpy 2.4.6, Python 3.11; a second run writes the same bytes.
"""
import json
import pathlib

import numpy as np
import torch
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor,
                          TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

random = np.random.default_rng(7)
LOGITS = {
    "normal": (3 * random.standard_normal(40)).astype(np.float32),
    "tied": (np.round(2 * random.standard_normal(40)) / 2).astype(np.float32),
    "uniform": np.full(8, 0.25, dtype=np.float32),
    "certain": np.array([-50, 60, -50, 0], dtype=np.float32),
    "two": np.array([1, 1], dtype=np.float32),
}
OPTIONS = [
    {},
    {"temperature": 0.5}, {"temperature": 1.7}, {"temperature": 1e-3}, {"temperature": 100.0},
    {"top_k": 1}, {"top_k": 2}, {"top_k": 5}, {"top_k": 11}, {"top_k": 1000},
    {"top_p": 1e-6}, {"top_p": 0.3}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999}, {"top_p": 1.0},
    {"min_p": 0.01}, {"min_p": 0.2}, {"min_p": 1.0},
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.7}, {"repetition_penalty": 5.0},
    {"temperature": 0.7, "top_k": 7, "top_p": 0.8},
    {"temperature": 1.4, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 10, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2},
    {"top_k": 3, "repetition_penalty": 2.0},
]
OCCURRED = [0, 3, 3, 1]


def probabilities(logits, options):
    processors = LogitsProcessorList()
    if "repetition_penalty" in options:
        processors.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if "temperature" in options:
        processors.append(TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        processors.append(TopKLogitsWarper(options["top_k"]))
    if options.get("top_p", 1.0) < 1.0:  # as generate() does
        processors.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        processors.append(MinPLogitsWarper(options["min_p"]))
    occurred = [i for i in OCCURRED if i < len(logits)]
    scores = processors(torch.tensor([occurred]), torch.from_numpy(logits)[None].clone())
    return occurred, torch.softmax(scores, dim=-1)[0]


cases = []
for name, logits in LOGITS.items():
    for options in OPTIONS:
        occurred, p = probabilities(logits, options)
        cases.append({"logits": name, "options": options, "occurred": occurred,
                      "probabilities": [float(f"{x:.8g}") for x in p.tolist()]})
path = pathlib.Path(__file__).parent / "sampling" / "distributions.json"
path.parent.mkdir(exist_ok=True)
lines = ",\n".join(json.dumps(case) for case in cases)
named = ",\n".join(f"{json.dumps(n)}: {json.dumps([float(x) for x in v])}" for n, v in LOGITS.items())
path.write_text('{"made_by": "make_sampling_goldens.py",\n"logits": {\n' + named + '},\n"cases": [\n' + lines + "]}\n")
print(len(cases), "distributions")
