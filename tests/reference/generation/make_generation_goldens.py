"""Tokens of Transformers' generate() for tests/decks/generation_test.cpp.

Usage: make_generation_goldens.py MODEL, the folder that `llmtool import stories260K.bin --tokenizer tok512.model` writes.
Writes goldens.json: prompts, and for each set of options (names of the deck's section [generate]) the new
tokens of each prompt, and with beams the scores. Each prompt is generated alone, in fp32 on the CPU.
Made with torch 2.15.0, transformers 5.24.0, Python 3.11; a second run writes the same bytes.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
PROMPTS = {  # with their tokens
    "Once upon a time": [1, 403, 407, 261, 378],
    "": [1],
    "Tom and his dog went to the park.": [1, 274, 287, 269, 345, 400, 428, 263, 377, 267, 265, 282, 295, 433, 426],
    'She said: "I like the big red ball': [1, 338, 336, 467, 313, 442, 397, 354, 265, 370, 352, 266, 268, 388],
}
GREEDY = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"no_repeat_ngram": 2},
    {"no_repeat_ngram": 3},
    {"no_repeat_ngram": 1, "max_new_tokens": 20},
    {"repetition_penalty": 1.1, "no_repeat_ngram": 4},
]
BEAMS = [
    {"beams": 2},
    {"beams": 4},
    {"beams": 4, "samples": 3},
    {"beams": 4, "length_penalty": 0.0},
    {"beams": 4, "length_penalty": 2.5, "early_stopping": "true"},
    {"beams": 4, "length_penalty": -1.0, "early_stopping": "never"},
    {"beams": 3, "length_penalty": 1.5, "early_stopping": "never", "max_new_tokens": 40},
    {"beams": 3, "repetition_penalty": 1.2},
    {"beams": 3, "no_repeat_ngram": 2, "early_stopping": "true"},
    # A frequent token (a full stop) as a second end: texts then end before the maximum length.
    {"beams": 4, "stop_tokens": 426},
    {"beams": 4, "stop_tokens": 426, "early_stopping": "true", "samples": 4},
    {"beams": 5, "stop_tokens": 426, "length_penalty": 3.0, "early_stopping": "never", "samples": 2},
    {"beams": 2, "stop_tokens": 426, "length_penalty": 0.2, "repetition_penalty": 1.1},
]
NAMES = {"no_repeat_ngram": "no_repeat_ngram_size", "beams": "num_beams", "samples": "num_return_sequences"}


def generate(prompt, options):
    arguments = {NAMES.get(name, name): value for name, value in options.items() if name != "stop_tokens"}
    if "early_stopping" in arguments:
        arguments["early_stopping"] = {"true": True, "never": "never"}[arguments["early_stopping"]]
    eos = [2] + ([options["stop_tokens"]] if "stop_tokens" in options else [])
    arguments.setdefault("max_new_tokens", 60)
    out = model.generate(torch.tensor([prompt]), do_sample=False, eos_token_id=eos, pad_token_id=2,
                         return_dict_in_generate=True, output_scores=True, **arguments)
    texts = []
    for row in out.sequences.tolist():
        new = row[len(prompt):]
        ends = [i for i, token in enumerate(new) if token in eos]
        texts.append(new[:ends[0] + 1] if ends else new)
    result = {"tokens": texts}
    if "beams" in options:
        result["scores"] = [float(f"{x:.7g}") for x in out.sequences_scores.tolist()]
    return result


cases = [{"options": options, "prompts": [generate(prompt, options) for prompt in PROMPTS.values()]}
         for options in GREEDY + BEAMS]
lines = ",\n".join(json.dumps(case) for case in cases)
text = '{"made_by": "make_generation_goldens.py",\n"prompts": ' + json.dumps(list(PROMPTS)) + ',\n"cases": [\n' + lines + "]}\n"
(pathlib.Path(__file__).parent / "goldens.json").write_text(text)
print(len(cases), "cases;", sum(t[-1] == 426 for c in cases for p in c["prompts"] for t in p["tokens"]), "end early")
