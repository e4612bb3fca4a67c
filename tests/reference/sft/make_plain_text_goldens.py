"""What TRL's trainers make of rows that people formatted themselves, for tests/data/plain_rows_test.cpp.

Writes plain_texts.json beside this file: rows with chat markup, no template applied, and the ids and trained tokens of
SFTTrainer (texts, prompts with completions) and DPOTrainer (pairs), and the ids of prompts as GRPOTrainer takes them. Each
is made with the tokenizer of model/, which adds nothing around a text, and with the same one that puts BOS before it
("bos": true; <|pad|> has to serve). TRL then writes a second BOS before a text that begins with its own, which is left out here.

    python make_plain_text_goldens.py

Versions: torch 2.15.0 (CPU), transformers 5.24.0, trl 1.16.0, tokenizers 0.23.3, Python 3.11.
"""
import json
import pathlib
import tempfile

from datasets import Dataset
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).parent


def markup(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def rows_of(bos, eos):
    questions = ["Name a fruit.", "", "the sea  ", "\u6771\u4eac?"]
    answers = ["An apple.<|im_end|>", f"salt{eos}", " ship ", f"<|im_end|>{eos}"]
    texts = [markup(q) + a for q, a in zip(questions, answers)]
    texts += [bos + "the ship", f"the ship {eos}", f"the ship{eos}\n", f"{bos}{eos}", "plain", f"a{eos}b"]
    pairs = list(zip([markup(q) for q in questions], answers))
    pairs += [("the sea", " is cold"), (bos + "the sea", f" is{eos}"), (f"ends{eos}", "again"), ("the se", "a"), ("", "only")]
    return {"text": [{"text": text} for text in texts],
            "prompt_completion": [{"prompt": p, "completion": c} for p, c in pairs],
            "preference": [{"prompt": p, "chosen": c, "rejected": c[::-1] if c.isascii() and "<" not in c else "no"} for p, c in pairs],
            "prompt": [{"prompt": p} for p, _ in pairs if p] + [{"prompt": f"the end{eos}"}]}


def once(ids, mask, bos):
    return (ids[1:], mask[1:]) if bos is not None and ids[:2] == [bos, bos] else (ids, mask)


def main():
    out = {"cases": []}
    folder = tempfile.mkdtemp()
    for with_bos in (False, True):
        tokenizer = AutoTokenizer.from_pretrained(HERE / "model")
        bos, eos = "<|pad|>", tokenizer.eos_token
        if with_bos:
            tokenizer.bos_token = bos
            tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_token_id)])
        second = tokenizer.bos_token_id if with_bos else None
        common = {"output_dir": folder, "report_to": "none", "use_cpu": True, "max_length": None}
        for name, rows in rows_of(bos, eos).items():
            encoded = []
            if name in ("text", "prompt_completion"):
                model = AutoModelForCausalLM.from_pretrained(HERE / "model")
                data = SFTTrainer(model, SFTConfig(**common), train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train_dataset
                for row in data:
                    encoded.append([once(row["input_ids"], [int(x != -100) for x in row["labels"]], second)])
            elif name == "preference":
                model = AutoModelForCausalLM.from_pretrained(HERE / "model")
                data = DPOTrainer(model, args=DPOConfig(**common), train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train_dataset
                for row in data:
                    prompt = row["prompt_ids"]
                    encoded.append([once(prompt + row[a], [0] * len(prompt) + [1] * len(row[a]), second) for a in ("chosen_ids", "rejected_ids")])
            else:
                for row in rows:
                    ids = tokenizer(row["prompt"])["input_ids"]
                    encoded.append([once(ids, [0] * len(ids), second)])
            assert len(encoded) == len(rows), (name, len(encoded))
            documents = [[{"ids": ids, "mask": mask} for ids, mask in row] for row in encoded]
            out["cases"].append({"format": name, "bos": with_bos, "rows": rows, "documents": documents})
    text = json.dumps(out).replace('{"format"', '\n{"format"').replace('}]], ', '}]],\n ').replace(']}], [{', ']}],\n  [{')
    (HERE / "plain_texts.json").write_text(text + "\n")


main()
