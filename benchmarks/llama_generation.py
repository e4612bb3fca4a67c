#!/usr/bin/env python3
"""llama_generation.py LLMTOOL DATA PYTHON LLAMA_PYTHON [--rounds N] [--layers N] [--types A,B]: generation beside llama.cpp.

A model of Llama's shape with random weights (hidden size 1024) is written once as a Hugging Face folder and exported to GGUF;
llama.cpp's own quantizer makes IQ4_NL, its format nearest to nf4. Per type: tokens a second of a prompt of 384 tokens, and of
128 new tokens one after the other (greedy, one text), as differences between runs, so that starting and loading do not count;
and the bytes of weights that decoding reads a second. Types run in turn, each in every round; the table has the fastest.
PYTHON has torch and transformers, LLAMA_PYTHON llama-cpp-python.
"""
import argparse
import json
import os
import pathlib
import tempfile
import time

from fine_tuning import make_model
from peer_rounds import checked

TYPES = {  # ours: options; llama.cpp's: type of the file, bytes a weight
    "fp32": (["--compute", "fp32"], "f32", 4),
    "bf16": (["--compute", "bf16"], "bf16", 2),
    "fp16": (["--compute", "fp16"], "f16", 2),
    "nf4 / IQ4_NL": (["--compute", "bf16", "--quantize", "nf4"], "iq4_nl", 0.5625),
}
PROMPT, NEW = 384, 128
QUANTIZE = """
import ctypes, sys, llama_cpp.llama_cpp as api
library = api._lib
default = library.llama_model_quantize_default_params
default.restype = api.llama_model_quantize_params
parameters = default()
parameters.ftype, parameters.quantize_output_tensor = 25, False  # IQ4_NL; the head stays as it is, as with nf4
quantize = library.llama_model_quantize
quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(api.llama_model_quantize_params)]
assert quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(parameters)) == 0
"""
PEER = """
import json, sys, time, llama_cpp
threads = int(sys.argv[2])
llama = llama_cpp.Llama(sys.argv[1], n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
prompt, new = int(sys.argv[3]), int(sys.argv[4])
ids = [100 + i % 1000 for i in range(prompt)]
llama.eval(ids[:8]); llama.reset()
begin = time.perf_counter(); llama.eval(ids); of_prompt = time.perf_counter() - begin
begin = time.perf_counter()
for _ in range(new): llama.eval([llama.sample(temp=0.0)])
print("RESULT", json.dumps([prompt / of_prompt, new / (time.perf_counter() - begin)]))
"""


def own(options, base, keys):
    def seconds(prompt, new):
        ids = ",".join(str(100 + i % 1000) for i in range(prompt))
        begin = time.perf_counter()
        checked([options.llmtool, "generate", "--model", base, "--greedy", "--ignore-eos", "--ids", "--prompt-ids", ids, "--max-new-tokens", new, *keys])
        return time.perf_counter() - begin

    start = seconds(8, 1)
    return PROMPT / (seconds(PROMPT, 1) - start), NEW / (seconds(8, NEW + 1) - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtool"), parser.add_argument("data", type=pathlib.Path), parser.add_argument("python"), parser.add_argument("llama_python")
    parser.add_argument("--rounds", type=int, default=3), parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--types", default=",".join(TYPES))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="llama_cpp."))
    base = folder / "base"
    make_model(options.python, options.data / "tokenizer/llama2", base, layers=options.layers, positions=1024)
    for name in ("f32", "bf16", "f16"):
        checked([options.llmtool, "export", base, "--format", "gguf", "--dtype", {"f32": "fp32", "f16": "fp16"}.get(name, name),
                 "--output", folder / f"{name}.gguf"])
    checked([options.llama_python, "-c", QUANTIZE, folder / "bf16.gguf", folder / "iq4_nl.gguf"])
    best = {}
    for _ in range(options.rounds):
        for name in options.types.split(","):
            keys, file, _ = TYPES[name]
            text = checked([options.llama_python, "-c", PEER, folder / f"{file}.gguf", os.environ["OMP_NUM_THREADS"], PROMPT, NEW])["output"]
            for who, rates in (("own", own(options, base, keys)), ("peer", json.loads(text.split("RESULT", 1)[1].splitlines()[0]))):
                known = best.get((name, who), (0, 0))
                best[name, who] = tuple(map(max, known, rates))
    matrices = options.layers * (4 * 1024 ** 2 + 3 * 1024 * 2816)
    print(f"{'type':<13} {'prompt/s':>9} {'llama.cpp':>9} {'ratio':>6} {'decoded/s':>10} {'llama.cpp':>9} {'ratio':>6} {'GB/s':>6}")
    for name in options.types.split(","):
        (prompt, new), (their_prompt, their_new) = best[name, "own"], best[name, "peer"]
        print(f"{name:<13} {prompt:9.0f} {their_prompt:9.0f} {prompt / their_prompt:6.2f} {new:10.1f} {their_new:9.1f} {new / their_new:6.2f} "
              f"{matrices * TYPES[name][2] * new / 1e9:6.1f}")


if __name__ == "__main__":
    main()
