"""Writes conversations as the publishers of the named templates write them: named.json.

    pip install transformers==5.24.0 jinja2==3.1.6 && pip install --no-deps trl==1.16.0
    python make_named_goldens.py

Of qwen, qwen3, llama3, gemma and phi3 the templates are those of TRL's wheel, rendered by Transformers. The others are
written out here: llama2 as chat_completion of Meta's llama, mistral and alpaca as LLaMA-Factory, vicuna as FastChat,
chatml and zephyr as the templates of their models. The text of a conversation, or null where the publisher refuses it;
`prompt` has the prompt of generation.
"""
import importlib.metadata
import json
import pathlib

from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(importlib.metadata.distribution("trl").locate_file("trl/chat_templates"))
BOS, EOS = "<s>", "</s>"
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."
)
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)


def turns(*texts, system=None):
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


ROWS = {
    "single": turns("Name a fruit.", "An apple."),
    "system": turns("Name a fruit.", "An apple.", system="Be terse."),
    "turns": turns("q1", "a1", "q2", "a2", "q3", "a3"),
    "system_turns": turns("q1", "a1", "q2", "a2", system="Two\nlines."),
    "empty": turns("", "", "q2", "a2"),
    "empty_system": turns("q", "a", system=""),
    "white_space": turns("  q \n", "\n a  ", "q2 ", " a2", system=" s \n"),
    "unicode": turns("caf\u00e9 \u4f60\u597d", "\U0001f600 \u00e9"),
    "prompt": turns("q1", "a1", "q2"),
    "system_prompt": turns("q1", system="s"),
}


def divided(messages):
    """The system message or None, and pairs of a question and its answer, None at the end of a prompt."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    texts = [message["content"] for message in messages if message["role"] != "system"]
    return system, list(zip(texts[::2], texts[1::2] + [None] * (len(texts) % 2)))


def llama2(messages):
    system, pairs = divided(messages)
    if system is not None:
        pairs[0] = (f"<<SYS>>\n{system}\n<</SYS>>\n\n{pairs[0][0]}", pairs[0][1])
    text = ""
    for question, answer in pairs:
        text += f"{BOS}[INST] {question.strip()} [/INST]"
        text += "" if answer is None else f" {answer.strip()} {EOS}"
    return text


def mistral(messages):
    system, pairs = divided(messages)
    text = BOS
    for i, (question, answer) in enumerate(pairs):
        text += "[INST] " + (f"{system}\n\n" if i == 0 and system is not None else "") + question + "[/INST]"
        text += "" if answer is None else f" {answer}{EOS}"
    return text


def alpaca(messages):
    system, pairs = divided(messages)
    text = BOS + (ALPACA if system is None else system) + "\n\n"
    asked = [f"### Instruction:\n{q}\n\n### Response:\n" + ("" if a is None else a + EOS) for q, a in pairs]
    return text + "\n\n".join(asked)


def vicuna(messages):
    system, pairs = divided(messages)
    text = BOS + (VICUNA if system is None else system) + " "
    for question, answer in pairs:
        text += f"USER: {question} ASSISTANT:" + ("" if answer is None else f" {answer}{EOS}")
    return text


def chatml(messages):
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if messages[-1]["role"] == "user" else "")


def zephyr(messages):
    text = "".join(f"<|{m['role']}|>\n{m['content']}{EOS}\n" for m in messages)
    return text + ("<|assistant|>\n" if messages[-1]["role"] == "user" else "")


def of_wheel(name):
    source = (FOLDER / name).read_text()

    def rendered(messages):
        try:
            text, _ = chat_template_utils.render_jinja_template(
                [messages],
                chat_template=source,
                add_generation_prompt=messages[-1]["role"] == "user",
                bos_token=BOS,
                eos_token=EOS,
            )
            return text[0]
        except Exception:  # noqa: BLE001
            return None

    return rendered


PUBLISHED = {
    "llama2": llama2,
    "llama3": of_wheel("llama3.jinja"),
    "chatml": chatml,
    "qwen": of_wheel("qwen2_5.jinja"),
    "qwen3": of_wheel("qwen3.jinja"),
    "mistral": mistral,
    "alpaca": alpaca,
    "zephyr": zephyr,
    "gemma": of_wheel("gemma3.jinja"),
    "phi3": of_wheel("phi3.jinja"),
    "vicuna": vicuna,
}
versions = {p: importlib.metadata.version(p) for p in ("transformers", "jinja2", "trl")}
texts = {name: {row: write(messages) for row, messages in ROWS.items()} for name, write in PUBLISHED.items()}
(HERE / "named.json").write_text(
    json.dumps({"versions": versions, "rows": ROWS, "templates": texts}, indent=1, ensure_ascii=True) + "\n"
)
