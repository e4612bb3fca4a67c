"""Writes goldens.json: scores and log-likelihoods of lm-evaluation-harness for the rows beside it, which are made up in
the shape of the published files, and for the first rows of published ones, under a small trained model.

    python make_task_goldens.py MODEL EVAL_DATA

MODEL: llama2.c's stories260K as `llmtool import` writes it. EVAL_DATA: a folder with hellaswag_val.jsonl, piqa.jsonl,
arc_easy.jsonl and lambada_openai.jsonl. The prompts are those of the tasks that the package has; their rows come from
local files.

lm_eval 0.4.13, torch 2.15.0, transformers 5.24.0, Python 3.11.
"""

import csv
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
ROWS = 24  # of each published file
LETTERS = "ABCD"


def lines(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def published(folder):
    """The first rows of the published files, in the columns that the package's tasks read."""
    rows = {name: lines(folder / f"{name}.jsonl")[:ROWS]
            for name in ("hellaswag_val", "piqa", "arc_easy", "lambada_openai")}
    plain = lambda text: text.removeprefix("Question: ").rstrip()
    return {
        "hellaswag_val": [dict(row, query=row["activity_label"] + ": " + row["ctx"]) for row in rows["hellaswag_val"]],
        "piqa_val": [dict(goal=plain(r["query"]), sol1=r["choices"][0], sol2=r["choices"][1], label=r["gold"])
                     for r in rows["piqa"]],
        "arc_easy": [dict(question=plain(r["query"]), choices=dict(text=r["choices"], label=list(LETTERS[:len(r["choices"])])),
                          answerKey=LETTERS[r["gold"]]) for r in rows["arc_easy"]],
        "lambada_openai": [dict(text=r["context"] + " " + r["continuation"]) for r in rows["lambada_openai"]],
    }


def own():
    """The rows beside this script, in the columns of the Hugging Face hub."""
    labels = (HERE / "piqa-labels.lst").read_text().split()
    arc = [dict(question=r["question"]["stem"], answerKey=r["answerKey"],
                choices=dict(text=[c["text"] for c in r["question"]["choices"]],
                             label=[c["label"] for c in r["question"]["choices"]])) for r in lines(HERE / "arc.jsonl")]
    mmlu = [dict(question=r[0], choices=r[1:5], answer=LETTERS.index(r[5]))
            for r in csv.reader(open(HERE / "first_aid_test.csv", newline=""))]
    return {
        "hellaswag": lines(HERE / "hellaswag.jsonl"),
        "piqa": [dict(row, label=int(label)) for row, label in zip(lines(HERE / "piqa.jsonl"), labels)],
        "arc": arc,
        "winogrande": lines(HERE / "winogrande.jsonl"),
        "lambada": lines(HERE / "lambada.jsonl"),
        "first_aid_test": mmlu,
    }


INCLUDE = {
    "hellaswag": "hellaswag/hellaswag.yaml", "hellaswag_val": "hellaswag/hellaswag.yaml", "piqa": "piqa/piqa.yaml",
    "piqa_val": "piqa/piqa.yaml", "arc": "arc/arc_easy.yaml", "arc_easy": "arc/arc_easy.yaml",
    "winogrande": "winogrande/default.yaml", "lambada": "lambada/lambada_openai.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml", "first_aid_test": "mmlu/default/_default_template_yaml",
}
FURTHER = {
    # Rows whose context is joined already.
    "hellaswag_val": 'process_docs: null\ndoc_to_text: "{{query}}"\ndoc_to_choice: "{{endings}}"\n',
    "first_aid_test": 'description: "The following are multiple choice questions (with answers) about first aid.\\n\\n"\n'
                      "fewshot_split: null\nfewshot_config: null\n",
}


def write_task(folder, name, rows):
    (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    include = pathlib.Path(lm_eval.__file__).parent / "tasks" / INCLUDE[name]
    (folder / f"{name}.yaml").write_text(
        f"include: {include}\ntask: own_{name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    test: {folder}/{name}.json\n"
        "training_split: null\nvalidation_split: null\ntest_split: test\n" + FURTHER.get(name, ""))


def main(model_folder, eval_folder):
    torch.set_num_threads(1)
    folder = pathlib.Path(tempfile.mkdtemp())
    tasks = {**own(), **published(pathlib.Path(eval_folder))}
    for name, rows in tasks.items():
        write_task(folder, name, rows)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=512)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = lm_eval.simple_evaluate(model=lm, tasks=[f"own_{name}" for name in tasks], task_manager=manager,
                                      num_fewshot=0, bootstrap_iters=0, log_samples=True)
    goldens = {}
    for name in tasks:
        scores = {key.removesuffix(",none"): value for key, value in results["results"][f"own_{name}"].items()
                  if key.startswith(("acc", "perplexity")) and not isinstance(value, str)}
        samples = sorted(results["samples"][f"own_{name}"], key=lambda sample: sample["doc_id"])
        choices = [[[round(float(r[0]), 5), bool(r[1])] for r in
                    (sample["filtered_resps"])] for sample in samples]
        goldens[name] = dict(scores=scores, choices=choices)
    text = ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in goldens.items())
    (HERE / "goldens.json").write_text(
        f'{{"rows": {ROWS}, "versions": "lm_eval {importlib.metadata.version("lm_eval")}, '
        f'torch {torch.__version__}",\n"tasks": {{\n{text}\n}}}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
