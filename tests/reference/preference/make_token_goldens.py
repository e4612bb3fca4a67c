"""Tokenizes preference data as TRL's DPOTrainer and KTOTrainer do: tokens.json.

    pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 trl==1.16.0 datasets
    python make_token_goldens.py DATA      # the folder with tokenizer/ and dpo/

The trainers' own _prepare_dataset makes the ids: prompt, then chosen and rejected (or the completion) behind it. Rows
that TRL cannot read are no part of it: conversations that share no message, or texts that are empty.
"""
import importlib.metadata
import json
import pathlib
import sys
import types

import accelerate
import transformers
import trl
from datasets import Dataset
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

accelerate.PartialState()
HERE = pathlib.Path(__file__).parent
DATA = pathlib.Path(sys.argv[1])


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


TEXTS = [
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    {"prompt": "2+2=", "chosen": "4", "rejected": "22"},
    {"prompt": "un", "chosen": "believable", "rejected": " fit"},  # a token joins the prompt and one answer only
    {"prompt": "Question: why?\n\n", "chosen": "Because.\n", "rejected": "\n"},
    {"prompt": "", "chosen": "only an answer", "rejected": "another one"},
    {"prompt": "caf", "chosen": "\u00e9 noir", "rejected": "e"},
    {"prompt": "\u4f60", "chosen": "\u597d\u4e16\u754c", "rejected": "\u4eec"},
    {"prompt": "a  ", "chosen": "  b", "rejected": "c"},
]
IMPLICIT_TEXTS = [
    {"chosen": "The sky is blue.", "rejected": "The sky is green."},  # without the space before the difference
    {"chosen": "The sky isblue.", "rejected": "The sky is green."},
    {"chosen": "The sky is", "rejected": "The sky is blue"},  # one is the begin of the other
    {"chosen": "Yes", "rejected": "no"},  # nothing is shared
    {"chosen": "na\u00efve \u00e9t\u00e9", "rejected": "na\u00efve \u00e8re"},  # characters that share a byte
    {"chosen": "two  spaces", "rejected": "two  blanks"},
]
CONVERSATIONS = [
    {"prompt": [user("What color is the sky?")], "chosen": [assistant("It is blue.")], "rejected": [assistant("Green")]},
    {"prompt": [{"role": "system", "content": "Be brief."}, user("Hi")], "chosen": [assistant("Hello")],
     "rejected": [assistant("Hello, how are you?"), user("Well"), assistant("Good")]},
]
IMPLICIT_CONVERSATIONS = [
    {"chosen": [user("Hi"), assistant("Hello")], "rejected": [user("Hi"), assistant("Go away")]},
    {"chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
     "rejected": [user("a"), assistant("b"), user("c"), assistant("e")]},
    {"chosen": [user("a"), assistant("b"), user("c"), assistant("d")], "rejected": [user("a"), assistant("b")]},
]
UNPAIRED = [{"prompt": r["prompt"], "completion": r["chosen"], "label": True} for r in TEXTS]
UNPAIRED_CONVERSATIONS = [{"prompt": r["prompt"], "completion": r["rejected"], "label": False} for r in CONVERSATIONS]


def load(name):
    if name == "small":
        return transformers.AutoTokenizer.from_pretrained(HERE.parent / "sft" / "model")
    if name == "gpt2":
        eos = "<|endoftext|>"
        file = str(DATA / "tokenizer" / "gpt2" / "tokenizer.json")
        return transformers.PreTrainedTokenizerFast(tokenizer_file=file, bos_token=eos, eos_token=eos)
    return transformers.AutoTokenizer.from_pretrained(DATA / "tokenizer" / name)


def prepared(trainer, tokenizer, rows):
    """The rows one by one: a data set has one set of columns, and messages of one type."""
    results = []
    for row in rows:
        own = types.SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False)
        arguments = types.SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
        made = trainer._prepare_dataset(own, Dataset.from_list([row]), tokenizer, arguments, "train")[0]
        answers = [made[key] for key in ("chosen_ids", "rejected_ids", "completion_ids") if key in made]
        results.append({"prompt": made["prompt_ids"], "answers": answers})
    return results


cases = []
for name in ("small", "gpt2", "llama2"):
    tokenizer = load(name)
    sets = [(DPOTrainer, TEXTS), (DPOTrainer, IMPLICIT_TEXTS), (KTOTrainer, UNPAIRED)]
    if name == "small":
        sets += [(DPOTrainer, CONVERSATIONS), (DPOTrainer, IMPLICIT_CONVERSATIONS), (KTOTrainer, UNPAIRED_CONVERSATIONS)]
    for trainer, rows in sets:
        for row, made in zip(rows, prepared(trainer, tokenizer, rows)):
            cases.append({"tokenizer": name, "row": row, **made})
    if name == "small":
        continue
    lines = (DATA / "dpo" / "hh_helpful.jsonl").read_text().splitlines()
    for number in (5, 700, 3000):
        made = prepared(DPOTrainer, tokenizer, [json.loads(lines[number - 1])])[0]
        cases.append({"tokenizer": name, "line": number, **made})

packages = ("trl", "transformers", "tokenizers", "datasets")
text = json.dumps({"versions": {p: importlib.metadata.version(p) for p in packages}, "cases": cases})
(HERE / "tokens.json").write_text(text.replace('}, {"tokenizer', '},\n  {"tokenizer') + "\n")
print(len(cases), "cases")
