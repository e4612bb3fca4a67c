"""Renders chat templates with Transformers and writes what comes out as hashes: chat_goldens.json.

    pip install transformers==5.24.0 jinja2==3.1.6 tokenizers==0.23.3 && pip install --no-deps trl==1.16.0
    python make_chat_goldens.py GPT2_FOLDER      # the folder of GPT-2's tokenizer.json

The templates are those of TRL's wheel, which are not part of this repository: a golden names its template's hash. For
every template and every conversation of conversations.json: null where apply_chat_template raises, else the hash of the
text, the merged character ranges of its generation blocks, and the hash of ids and assistant mask by GPT-2's tokenizer
(ids alone where the template has no generation block), and the hash of ids and completion mask with the last message as completion ("differs" where the text does
not begin with that of the messages before). Empty generation blocks are left out of ranges and masks.
"""
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import sys

import transformers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 3, 4, 5, 6, 7)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Clock


def fnv(text):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def merged(ranges):
    out = []
    for begin, end in ranges:
        if begin == end:
            continue
        if out and out[-1][1] == begin:
            out[-1][1] = end
        else:
            out.append([begin, end])
    return out


def rendered(tokenizer, template, conversation):
    arguments = dict(
        tools=conversation.get("tools"),
        add_generation_prompt=conversation.get("add_generation_prompt", False),
        chat_template=template,
        **conversation.get("variables", {}),
    )
    generation = re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
    try:
        text = tokenizer.apply_chat_template(conversation["messages"], tokenize=False, **arguments)
        encoded = tokenizer.apply_chat_template(
            conversation["messages"], return_assistant_tokens_mask=generation, return_dict=True, **arguments
        )
    except Exception as error:  # noqa: BLE001
        if os.environ.get("SHOW_ERRORS"):
            print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        return None
    numbers = list(encoded["input_ids"])
    spans = []
    if generation:
        _, spans = chat_template_utils.render_jinja_template(
            [chat_template_utils._normalize_chat_messages(conversation["messages"])],
            return_assistant_tokens_mask=True,
            **arguments,
            **tokenizer.special_tokens_map,
        )
        has_empty = any(begin == end for begin, end in spans[0])
        spans = merged(spans[0])
        offsets = encoded.encodings[0].offsets
        mask = [int(any(b < end and e > begin for begin, end in spans)) for b, e in offsets]
        # Transformers also marks a token inside of which an empty block lies, which trains a token of the prompt.
        assert has_empty or mask == list(encoded["assistant_masks"])
        numbers += mask
    return [fnv(text), spans, fnv(" ".join(map(str, numbers))), completion(tokenizer, conversation, text, arguments)]


def completion(tokenizer, conversation, text, arguments):
    """The mask of the last message as TRL's trainers find it: the ids that differ from those of the prompt."""
    prompt = conversation["messages"][:-1]
    if arguments["add_generation_prompt"] or not prompt or conversation["messages"][-1]["role"] != "assistant":
        return None
    arguments = {**arguments, "add_generation_prompt": True}
    try:
        before = tokenizer.apply_chat_template(prompt, tokenize=False, **arguments)
    except Exception:  # noqa: BLE001
        return "raises"
    if not text.startswith(before):
        closed = tokenizer.apply_chat_template(prompt, tokenize=False, **{**arguments, "add_generation_prompt": False})
        if not text.startswith(closed) or not before.startswith(closed):
            return "differs"
        # As TRL's apply_chat_template of a prompt and its completion, but for the beginning of a tag that both have.
        before = re.match(r"(?s).*[>\n]", os.path.commonprefix([before, text]))[0]
    whole, start = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (text, before))
    same = 0
    while same < min(len(whole), len(start)) and whole[same] == start[same]:
        same += 1
    return fnv(" ".join(map(str, whole + [0] * same + [1] * (len(whole) - same))))


def main():
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=f"{sys.argv[1]}/tokenizer.json", bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    conversations = json.loads((HERE / "conversations.json").read_text())
    folder = pathlib.Path(importlib.metadata.distribution("trl").locate_file("trl/chat_templates"))
    templates = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode()
        templates[path.name] = {
            "source": fnv(source),
            "rendered": {name: rendered(tokenizer, source, c) for name, c in conversations.items()},
        }
    versions = {p: importlib.metadata.version(p) for p in ("transformers", "jinja2", "tokenizers", "trl")}
    lines = [f'  {json.dumps(name)}: {json.dumps(value, separators=(",", ":"))}' for name, value in templates.items()]
    with open(HERE / "chat_goldens.json", "w") as file:
        file.write(f'{{\n "versions": {json.dumps(versions)},\n "templates": {{\n' + ",\n".join(lines) + "\n }\n}\n")


main()
