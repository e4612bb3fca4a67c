"""Encodes prompts and completions as TRL's SFTTrainer does: completions.json.

    pip install transformers==5.24.0 tokenizers==0.23.3
    python make_completion_goldens.py TOKENIZERS      # the folder with gpt2/ and llama2/

TRL appends EOS to a completion that does not end with it, tokenizes the prompt and prompt + completion with the
tokenizer's own special tokens, and trains the ids behind their common prefix.
"""
import importlib.metadata
import json
import pathlib
import sys

import transformers

ROWS = [
    ["2+2=", "4"],
    ["2+2= ", "4"],
    ["un", "believable"],
    ["The cat", " sat on the mat."],
    ["The cat ", "sat"],
    ["The cat ", " sat"],
    ["", "only a completion"],
    ["only a prompt", ""],
    ["Question: why?\n", "\nBecause."],
    ["Question: why?\n\n", "Because.\n"],
    ["caf", "\u00e9"],
    ["\u4f60", "\u597d\u4e16\u754c"],
    ["\U0001f600", "\U0001f680 x"],
    ["a  ", "  b"],
    ["say", " it</s>"],
    ["tab\t", "\tx"],
    ["1", "23456"],
    ["hello", "hello"],
    ["end", "<|endoftext|>"],
]


def load(folder, name):
    if name == "gpt2":
        eos = "<|endoftext|>"
        return transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/gpt2/tokenizer.json", bos_token=eos, eos_token=eos)
    return transformers.AutoTokenizer.from_pretrained(f"{folder}/{name}")


cases = {}
for name in ("gpt2", "llama2"):
    tokenizer = load(sys.argv[1], name)
    cases[name] = []
    for prompt, completion in ROWS:
        if not completion.endswith(tokenizer.eos_token):
            completion += tokenizer.eos_token
        start, whole = tokenizer(prompt)["input_ids"], tokenizer(prompt + completion)["input_ids"]
        same = 0
        while same < min(len(start), len(whole)) and start[same] == whole[same]:
            same += 1
        cases[name].append({"ids": whole, "prompt": same, "prompt_alone": len(start)})
document = {"versions": {p: importlib.metadata.version(p) for p in ("transformers", "tokenizers")}, "rows": ROWS, "cases": cases}
path = pathlib.Path(__file__).parent / "completions.json"
text = json.dumps(document).replace('}, {"ids', '},\n  {"ids').replace('], [', '],\n  [')
path.write_text(text + "\n")
