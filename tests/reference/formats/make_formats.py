"""Rows of instruction data and what LLaMA-Factory's converters make of them, for tests/data/row_format_test.cpp.

Writes rows.json: a list of cases {format, columns, row, prompt, response, system, tools}. `columns` is a value of
data.columns. Of a row that LLaMA-Factory leaves out (with a warning) or fails on, prompt and response are null. And
preferences.json: the same for pairs (two responses) and rows of KTO (the response that is not empty; with its label).
Made with llamafactory 0.9.5 (pip install --no-deps llamafactory), Python 3.11; a second run writes the same bytes. Only
its file data/converter.py runs; the packages that it imports for other ends are replaced by empty ones.
"""
import copy
import importlib.util
import json
import pathlib
import sys
import types
from enum import Enum


class Role(str, Enum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    OBSERVATION = "observation"


def load_converters():
    folder = pathlib.Path(importlib.util.find_spec("llamafactory").origin).parent
    for name in ("llamafactory", "llamafactory.extras", "llamafactory.data"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    quiet = types.SimpleNamespace(warning_rank0=lambda *a: None, warning_rank0_once=lambda *a: None)
    sys.modules["llamafactory.extras"].logging = types.SimpleNamespace(get_logger=lambda name: quiet)
    sys.modules["llamafactory.data.data_utils"] = types.SimpleNamespace(Role=Role)
    spec = importlib.util.spec_from_file_location("llamafactory.data.converter", folder / "data" / "converter.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.DATASET_CONVERTERS


DEFAULTS = dict(ranking=False, load_from="file", images=None, videos=None, audios=None, chosen=None, rejected=None,
                kto_tag=None, prompt="instruction", query="input", response="output", history="history",
                messages="conversations", system="system", tools="tools", role_tag="from", content_tag="value",
                user_tag="human", assistant_tag="gpt", observation_tag="observation", function_tag="function_call",
                system_tag="system")
ROLES = {"role": "role_tag", "content": "content_tag"}


def turn(role, text):
    return {"from": role, "value": text}


CALL = '{"name": "weather", "arguments": {"city": "K\\u00f6ln", "days": [1, 2]}}'
TOOLS = '[{"name": "weather", "description": "now", "parameters": {"type": "object", "properties": {}}}]'
CASES = [
    ("alpaca", {}, {"instruction": "Name a fruit.", "input": "", "output": "A pear."}),
    ("alpaca", {}, {"instruction": "Translate.", "input": "der Hund\n", "output": " the dog"}),
    ("alpaca", {}, {"instruction": "", "input": "only input", "output": "x"}),
    ("alpaca", {}, {"instruction": "no input", "output": ""}),
    ("alpaca", {}, {"instruction": "null input", "input": None, "output": "x", "system": None, "history": None}),
    ("alpaca", {}, {"instruction": "q3", "input": "", "output": "a3", "system": "Be brief.",
                    "history": [["q1", "a1"], ["q2", "a2"]]}),
    ("alpaca", {}, {"instruction": "q", "output": "a", "history": []}),
    ("alpaca", {"prompt": "question", "query": "context", "response": "answer"},
     {"question": "Who?", "context": "\u00c9mile", "answer": "He.", "instruction": "not this"}),
    ("alpaca", {}, {"instruction": "q", "output": "a", "tools": TOOLS}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), turn("gpt", "hello")]}),
    ("sharegpt", {}, {"conversations": [turn("system", "own"), turn("human", "hi"), turn("gpt", "hello")],
                      "system": "the column's"}),
    ("sharegpt", {}, {"conversations": [turn("human", "1"), turn("gpt", "2"), turn("human", "3"), turn("gpt", "")],
                      "system": "the column's"}),
    ("sharegpt", {}, {"conversations": [turn("human", "rain?"), turn("function_call", CALL),
                                        turn("observation", '{"rain": true}'), turn("gpt", "yes")], "tools": TOOLS}),
    ("sharegpt", {}, {"conversations": [turn("observation", "22 C"), turn("gpt", "warm")]}),
    ("sharegpt", {"messages": "dialog", "role": "speaker", "content": "text"},
     {"dialog": [{"speaker": "human", "text": "hi"}, {"speaker": "gpt", "text": "hello"}]}),
    ("sharegpt", {}, {"conversations": [turn("gpt", "first"), turn("human", "second")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), turn("human", "again"), turn("gpt", "hello")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), turn("gpt", "a"), turn("gpt", "b")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), turn("system", "late"), turn("gpt", "b")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), turn("bot", "b")]}),
    ("sharegpt", {}, {"conversations": [turn("human", "hi"), {"value": "b"}]}),
]


ANSWERS = {"chosen": turn("gpt", "yes"), "rejected": turn("gpt", "no")}
OPENAI = dict(messages="messages", role_tag="role", content_tag="content", user_tag="user", assistant_tag="assistant")
PAIR = dict(ranking=True, chosen="chosen", rejected="rejected")
PREFERENCES = [
    ("preference", "alpaca", PAIR, {"instruction": "q", "input": "i", "chosen": "yes", "rejected": "no"}),
    ("preference", "alpaca", PAIR, {"instruction": "q", "input": "", "chosen": "yes", "rejected": "no", "system": "Be brief.",
                                    "history": [["q1", "a1"]]}),
    ("preference", "alpaca", PAIR | {"prompt": "question"}, {"question": "q", "system": "s", "chosen": "yes", "rejected": "no"}),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("human", "hi")]} | ANSWERS),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("system", "s"), turn("human", "1"), turn("gpt", "2"),
                                                        turn("human", "3")]} | ANSWERS),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("human", "1"), turn("gpt", "2"), turn("observation", "3")],
                                      "system": "the column's"} | ANSWERS),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("human", "hi"), turn("gpt", "a")]} | ANSWERS),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("gpt", "hi")]} | ANSWERS),
    ("preference", "sharegpt", PAIR, {"conversations": [turn("human", "hi"), turn("human", "again")]} | ANSWERS),
    ("unpaired", "alpaca", {"kto_tag": "kto_tag"}, {"instruction": "q", "input": "i", "output": "yes", "kto_tag": True}),
    ("unpaired", "alpaca", {"kto_tag": "label"}, {"instruction": "q", "output": "no", "label": False, "history": [["q1", "a1"]]}),
    ("unpaired", "sharegpt", {"kto_tag": "kto_tag"}, {"conversations": [turn("human", "1"), turn("gpt", "2"), turn("human", "3"),
                                                                        turn("gpt", "4")], "kto_tag": True}),
    ("unpaired", "sharegpt", {"kto_tag": "kto_tag"}, {"conversations": [turn("human", "1"), turn("gpt", "2"), turn("human", "3")],
                                                      "kto_tag": False}),
    ("unpaired", "sharegpt", {"kto_tag": "kto_tag"}, {"conversations": [turn("human", "1"), turn("gpt", "2"), turn("gpt", "3")],
                                                      "kto_tag": False}),
    ("unpaired", "sharegpt", OPENAI | {"kto_tag": "label"}, {"messages": [{"role": "user", "content": "q"},
                                                                          {"role": "assistant", "content": "a"}], "label": True}),
]


def convert_preferences(converters, kind, settings, row):
    attributes = dict(DEFAULTS, **settings)
    row = {key: None for key in attributes.values() if isinstance(key, str)} | copy.deepcopy(row)
    converted = converters[kind](types.SimpleNamespace(**attributes), None)(row)
    return converted if converted["_response"] else None


def convert(converters, kind, columns, row):
    attributes = dict(DEFAULTS, **{ROLES.get(role, role): column for role, column in columns.items()})
    row = {key: None for key in attributes.values() if isinstance(key, str)} | copy.deepcopy(row)
    try:
        converted = converters[kind](types.SimpleNamespace(**attributes), None)(row)
    except KeyError:
        return None
    return converted if converted["_response"] else None


def main():
    converters = load_converters()
    cases = []
    for kind, columns, row in CASES:
        converted = convert(converters, kind, columns, row) or {}
        case = {"format": kind, "columns": ",".join(f"{role}:{name}" for role, name in columns.items()),
                "row": json.dumps(row, ensure_ascii=False)}
        for key in ("prompt", "response", "system", "tools"):
            case[key] = converted.get("_" + key) or None
        cases.append(case)
    text = json.dumps(cases, indent=1, ensure_ascii=True)
    (pathlib.Path(__file__).parent / "rows.json").write_text(text + "\n")
    cases = []
    for format_name, kind, settings, row in PREFERENCES:
        converted = convert_preferences(converters, kind, settings, row) or {}
        tag = row.get(settings.get("kto_tag"))
        case = {"format": format_name, "row": json.dumps(row), "label": tag}
        for key in ("prompt", "response", "system"):
            case[key] = converted.get("_" + key) or None
        if tag is not None and case["response"]:
            case["response"] = [case["response"][0 if tag else 1]]
        cases.append(case)
    (pathlib.Path(__file__).parent / "preferences.json").write_text(json.dumps(cases, indent=1) + "\n")


main()
