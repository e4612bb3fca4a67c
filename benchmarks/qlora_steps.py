#!/usr/bin/env python3
"""qlora_steps.py LLMTRAIN DATA PYTHON [--cases 4096,512] [--peer A,B] [--precision bf16,fp32] [--rounds N] [--steps N] [--busy]:
LoRA beside a base in nf4 with double quantisation, with PEFT and bitsandbytes at their best settings beside it, and
llmtrain's over a base in the compute type and in int8.

A model of Llama's shape with random weights (hidden size 1024, 18 layers: some 300 million) and one adapter (r 16, all linear
layers) on both sides. A case is the number of tokens of a step, which is one micro-batch: rows of 512 random tokens. The
peer's settings: eager and compiled, autocast and pure bf16, with tcmalloc; the default is eager bf16 with the C library's malloc.
Rounds, choice and checks are those of fine_tuning.py: losses of every step must agree. PYTHON has torch, transformers, peft and
bitsandbytes, whose products in 4 bits on processors are those of its wheel, without the hub's kernels.
"""
import json
import random

from fine_tuning import LORA, Bench, make_parser
from peer_rounds import expect_quiet

LENGTH = 512
NF4 = ["quantization.bits=4", "quantization.type=nf4", "quantization.double=true"]
OTHERS = {"compute type": [], "int8": ["quantization.bits=8"]}


def main():
    parser = make_parser(__doc__, ["4096", "512"], layers=18)
    parser.add_argument("--precision", help="comma-separated; default: the processor's best, and fp32")
    options = parser.parse_args()
    bench = Bench(options)
    draw, vocabulary = random.Random(0), json.loads((bench.base / "config.json").read_text())["vocab_size"]
    for number in options.precision.split(",") if options.precision else dict.fromkeys((bench.precision, "fp32")):
        bench.precision = number
        for tokens in map(int, options.cases.split(",")):
            rows = max(1, tokens // LENGTH)
            path = bench.write("ids.jsonl", [{"input_ids": [draw.randrange(3, vocabulary) for _ in range(LENGTH + 1)]}
                                             for _ in range(rows * options.steps)])
            keys = ["run.task=pretrain", f"batch.sequence_length={LENGTH}", f"batch.micro={rows}", f"batch.global={rows}",
                    "schedule.learning_rate=1e-3", *LORA]
            peers, _ = bench.settings([""])
            bench.compete(f"nf4, {number}, {tokens} tokens a step", "qlora", [*keys, *NF4], path, peers,
                          "fp32" if number == "fp32" else "bf16", micro=rows, accumulate=1, rate=1e-3, adapter=f"{bench.base}-adapter")
            for name, storage in OTHERS.items():
                if not options.busy:
                    expect_quiet()
                print(f"llmtrain over {name}: {max(bench.llmtrain(path, *keys, *storage)['speed'] for _ in range(options.rounds)):.1f} "
                      "tokens/s, the fastest round", flush=True)


if __name__ == "__main__":
    main()
