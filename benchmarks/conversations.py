#!/usr/bin/env python3
"""conversations.py LLMTRAIN ROWS.jsonl MODEL [--rounds N]: time to render and tokenize alpaca rows, one thread each.

ours: `LLMTRAIN` (run.task = sft) from the line "tokenizing" to the line "tokens are kept in", with a new cache a round (a
pass before it hashes the file and checks the shape of rows);
reference: datasets.map with apply_chat_template of a fast tokenizer. MODEL is a Hugging Face folder whose tokenizer is
read by both. Both render the ChatML template without a system message. Needs datasets and transformers.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def ours(program, rows, model, folder):
    (folder / "template.jinja").write_text(TEMPLATE)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    arguments = ["run.task=sft", "run.max_steps=1", f"run.output={folder}", "run.name=run", "run.overwrite=true",
                 f"data.train={rows}", f"data.cache={folder}/cache", f"model.path={model}", f"chat.template={folder}/template.jinja",
                 "data.validation_fraction=0", "batch.sequence_length=64", "checkpoint.at_end=false", "checkpoint.every_steps=0",
                 "evaluation.at_end=false", "evaluation.every_steps=0"]
    (folder / "deck.ini").write_text("[run]\n")
    process = subprocess.Popen([program, str(folder / "deck.ini"), *arguments], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1"))
    begin = None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("tokenizing "):
            begin = time.perf_counter()
        if line.startswith("tokens are kept in"):
            end = time.perf_counter()
            process.kill()
            process.wait()
            return end - begin
    raise SystemExit("llmtrain ended early:\n" + "".join(lines[-8:]))


def reference(rows, model):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    import datasets
    import transformers
    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    table = datasets.Dataset.from_list([json.loads(line) for line in open(rows)])

    def encode(row):
        question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
        prompt = tokenizer.apply_chat_template(messages[:1], chat_template=TEMPLATE, add_generation_prompt=True, return_dict=True)
        whole = tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, return_dict=True)
        known = len(prompt["input_ids"])
        return {"input_ids": whole["input_ids"], "mask": [0] * known + [1] * (len(whole["input_ids"]) - known)}

    begin = time.perf_counter()
    table.map(encode, remove_columns=table.column_names, load_from_cache_file=False, keep_in_memory=True)
    return time.perf_counter() - begin


parser = argparse.ArgumentParser()
parser.add_argument("program")
parser.add_argument("rows")
parser.add_argument("model")
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()
with tempfile.TemporaryDirectory() as name:
    for round_number in range(options.rounds):
        mine = ours(options.program, options.rows, options.model, pathlib.Path(name))
        theirs = reference(options.rows, options.model)
        print(f"round {round_number + 1}: llmtrain {mine:.3f} s, datasets.map {theirs:.3f} s, {theirs / mine:.1f} x", flush=True)
