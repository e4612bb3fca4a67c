"""Finds the turns of the assistant with Transformers and TRL's training templates: turns.json.

    pip install transformers==5.24.0 jinja2==3.1.6 && pip install --no-deps trl==1.16.0
    python make_turn_goldens.py

For each template of TRL's wheel that has a training variant, and each conversation below and of conversations.json whose
text is the same by both: the hash of the byte ranges that are trained. A turn begins after the prompt of generation,
where the text of the messages before it and that prompt is the beginning of the whole; otherwise (DeepSeek, Nemotron,
Qwen 3.5) where the variant's generation block begins, or after the prompt of generation that the block repeats. If one
turn lacks what its prompt ends with, an opener of reasoning, all turns that have a prompt begin with the blocks. A turn
ends where the block ends, without the line break after the stop token. Null: the template raises, or the texts differ.
"""
import datetime
import importlib.metadata
import json
import pathlib
import re

from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 3, 4, 5, 6, 7)


chat_template_utils.datetime = Clock


def fnv(text):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def user(content):
    return {"role": "user", "content": content}


def tool(content, name="f"):
    return {"role": "tool", "name": name, "content": content}


def answer(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "Be terse."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "a function",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
]
ONE, TWO = [call("f", x=1)], [call("f", x=1), call("g", y="a b", z=[1, None])]
ROWS = {
    "single": [user("q"), answer("first answer")],
    "system": [SYSTEM, user("q"), answer("first answer")],
    "two": [user("q1"), answer("first answer"), user("q2"), answer("second answer")],
    "three": [SYSTEM, user("q1"), answer("a1"), user("q2"), answer("a2"), user("q3"), answer("a3")],
    "thought_in_content": [user("q"), answer("<think>\nr\n</think>\n\na")],
    "thoughts_in_content": [
        user("q1"),
        answer("<think>\nr1\n</think>\n\na1"),
        user("q2"),
        answer("<think>\nr2\n</think>\n\na2"),
    ],
    "only_thought": [user("q1"), answer("<think>\nr1\n</think>\n\n"), user("q2"), answer("a2")],
    "one_reasoning": [user("q"), answer("a", reasoning_content="because")],
    "two_reasonings": [
        user("q1"),
        answer("a1", reasoning_content="because"),
        user("q2"),
        answer("a2", reasoning_content="therefore"),
    ],
    "earlier_reasoning": [user("q1"), answer("a1", reasoning_content="because"), user("q2"), answer("a2")],
    "call": [user("q"), answer("", tool_calls=ONE), tool("out"), answer("a")],
    "call_with_text": [user("q"), answer("I look.", tool_calls=ONE), tool("out"), answer("a")],
    "calls_of_two": [user("q"), answer("", tool_calls=TWO), tool("o1"), tool("o2", "g"), answer("a")],
    "call_with_reasoning": [
        user("q"),
        answer("", tool_calls=ONE, reasoning_content="r1"),
        tool("out"),
        answer("a", reasoning_content="r2"),
    ],
    "call_without_answer": [SYSTEM, user("q"), answer("", tool_calls=ONE)],
    "call_null": [user("q"), answer(None, tool_calls=ONE), tool("out"), answer("a"), user("q2"), answer("a2")],
    "equal_turns": [user("q"), answer("x"), user("q"), answer("x"), user("x"), answer("q")],
    "spaces_around": [user(" q "), answer("  a \n"), user("q2\n"), answer("\na2\n")],
    "empty_answer": [user("q"), answer(""), user("q2"), answer("a2")],
    "last_is_empty": [user("q"), answer("a"), user("q2"), answer("")],
    "answers_in_a_row": [user("q"), answer("a1"), answer("a2")],
    "ends_with_question": [user("q"), answer("a1"), user("q2")],
    "stops_in_content": [user("q<|im_end|>"), answer("a<|im_end|>b"), user("</think>"), answer("assistant")],
}


def rendered(template, row, messages, prompt=False, mask=False):
    text, ranges = chat_template_utils.render_jinja_template(
        [chat_template_utils._normalize_chat_messages(messages)],
        tools=row.get("tools"),
        chat_template=template,
        add_generation_prompt=prompt,
        return_assistant_tokens_mask=mask,
        bos_token="<s>",
        eos_token="</s>",
        **row.get("variables", {}),
    )
    return text[0], ranges[0] if mask else None


def prompt_of_turn(template, row, number, text):
    """The prompt of generation, and where it ends if the text of the messages before it is the beginning of the whole."""
    before, _ = rendered(template, row, row["messages"][:number], prompt=True)
    closed, _ = rendered(template, row, row["messages"][:number])
    prompt = before[len(closed) :] if before.startswith(closed) else ""
    return prompt, len(before) if text.startswith(before) else None


def begins_of_turns(template, row, numbers, text, blocks):
    prompts = [prompt_of_turn(template, row, number, text) for number in numbers]
    begins = []
    for (prompt, end), (block, block_end) in zip(prompts, blocks):
        lacks = end is None and text.rfind(prompt, max(0, block - len(prompt)), block + len(prompt)) < 0
        if lacks and re.sub(r"<[^>]*>", "", text[block:block_end]).strip():  # it says something
            return [end if end and not prompt else begin for (prompt, end), (begin, _) in zip(prompts, blocks)]
        begins.append(end or (block + len(prompt) if text.startswith(prompt, block) else block))
    return begins


def turns(template, training, row):
    messages = row["messages"]
    if any(isinstance(message["content"], list) for message in messages if "content" in message):
        return None  # a template that reads no parts writes the list
    try:
        text, _ = rendered(template, row, messages)
        same, blocks = rendered(training, row, messages, mask=True)
        numbers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if text != same or len(blocks) != len(numbers):
            return None
        ranges = []
        begins = begins_of_turns(template, row, numbers, text, blocks)
        for begin, (_, end) in zip(begins, blocks):
            end = max(begin, len(text[:end].rstrip()))
            if ranges and ranges[-1][1] == begin:
                ranges[-1][1] = end
            elif begin < end:
                ranges.append([begin, end])
    except Exception:  # noqa: BLE001
        return None
    size = [len(text[:place].encode()) for pair in ranges for place in pair]
    return fnv(" ".join(map(str, size)))


def main():
    folder = pathlib.Path(importlib.metadata.distribution("trl").locate_file("trl/chat_templates"))
    rows = {name: {"messages": messages} for name, messages in ROWS.items()}
    rows |= {f"{name}_tools": {"messages": row, "tools": TOOLS} for name, row in ROWS.items() if "call" in name}
    known = json.loads((HERE / "conversations.json").read_text())
    templates = {}
    for path in sorted(folder.glob("*_training.jinja")):
        if path.name.startswith(("gptoss", "glm4moe")):
            continue  # the last turn ends with another token than the others, or none, and theirs is not trained
        plain = path.with_name(path.name.replace("_training", ""))
        source, training = (p.read_bytes().decode() for p in (plain, path))
        found = {name: turns(source, training, row) for name, row in (rows | known).items()}
        templates[plain.name] = {"source": fnv(source), "turns": {k: v for k, v in found.items() if v}}
    versions = {p: importlib.metadata.version(p) for p in ("transformers", "jinja2", "trl")}
    lines = [f'  {json.dumps(name)}: {json.dumps(value, separators=(",", ":"))}' for name, value in templates.items()]
    row_lines = [f'  {json.dumps(name)}: {json.dumps(row)}' for name, row in rows.items()]
    with open(HERE / "turns.json", "w") as file:
        file.write(f'{{\n "versions": {json.dumps(versions)},\n "rows": {{\n' + ",\n".join(row_lines))
        file.write('\n },\n "templates": {\n' + ",\n".join(lines) + "\n }\n}\n")


main()
