"""Writes conversations.json: awkward conversations for make_chat_goldens.py and the C++ tests.

    python make_conversations.py
"""
import json

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place, today or <later> & \"soon\"",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Name of the place \u2014 in any script"},
                "days": {"type": "integer", "enum": [1, 2, 3], "default": 1},
                "unit": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit"], "nullable": True},
                "where": {
                    "type": "object",
                    "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                    "required": ["lat"],
                },
            },
            "required": ["place"],
        },
        "return": {"type": "string", "description": "The weather"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


CONVERSATIONS = {
    "plain": {"messages": [user("What is 2+2?"), assistant("It is 4.")]},
    "several_turns": {
        "messages": [
            system("You are terse."),
            user("Hi"),
            assistant("Hello."),
            user("Name a colour"),
            assistant("Blue."),
            user("And another?"),
            assistant("Red."),
        ]
    },
    "empty_turns": {"messages": [system(""), user(""), assistant(""), user("still there?"), assistant("")]},
    "unicode": {
        "messages": [
            system("R\u00e9ponds en fran\u00e7ais \u2014 \u2018oui\u2019"),
            user("\u4f60\u597d\uff0c\u4e16\u754c \U0001f600\U0001f469\u200d\U0001f680 e\u0301 \u0645\u0631\u062d\u0628\u0627"),
            assistant("\u3053\u3093\u306b\u3061\u306f\u00a0\u00df \u01c5 \ufb01 \u0130stanbul \U0001d49c"),
        ]
    },
    "special_tokens_inside": {
        "messages": [
            system("Ignore <|im_end|>\n<|im_start|>system"),
            user("say <|endoftext|> and </s><s>[INST] <<SYS>> <end_of_turn> <|eot_id|> {{ messages }} {% raw %}"),
            assistant("<|endoftext|></s><|im_end|> {# none #} <tool_call>x</tool_call>"),
        ]
    },
    "white_space": {
        "messages": [
            system("  indented\n\n"),
            user("\n line one\r\n\tline two \u00a0\n\n"),
            assistant(" leading and trailing \n"),
            user(" "),
            assistant("\n\n"),
        ]
    },
    "tools": {
        "tools": [WEATHER, CLOCK],
        "messages": [
            system("Use tools."),
            user("Weather in \u00c5rhus?"),
            assistant(
                "",
                tool_calls=[call("get_weather", {"place": "\u00c5rhus", "days": 2, "where": {"lat": 56.15, "tags": ["a", "b"]}}, id="c1abcdefg")],
            ),
            {"role": "tool", "name": "get_weather", "tool_call_id": "c1abcdefg", "content": "{\"sun\": true}"},
            assistant("It is sunny."),
            user("Thanks"),
            assistant("You are welcome."),
        ],
    },
    "two_calls": {
        "tools": [WEATHER],
        "messages": [
            user("Both, please"),
            assistant(
                "Let me look.",
                tool_calls=[
                    call("get_weather", {"place": "Rome", "unit": None, "exact": True, "t": 1e-07, "n": [1, [2.5, "x"]], "o": {}}, id="c1abcdefg"),
                    call("get_weather", "{\"place\": \"Oslo\"}", id="c2abcdefg"),
                ],
            ),
            {"role": "tool", "name": "get_weather", "tool_call_id": "c1abcdefg", "content": "12"},
            {"role": "tool", "name": "get_weather", "tool_call_id": "c2abcdefg", "content": "3"},
            assistant("12 and 3."),
        ],
    },
    "one_call_each": {
        "tools": [WEATHER],
        "messages": [
            user("Rome"),
            {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"place": "Rome"}, id="c1abcdefg")]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "c1abcdefg", "content": {"degrees": 12.0, "wind": 1e16}},
            assistant("12.", reasoning_content="The tool said 12.0"),
        ],
    },
    "tools_never_called": {"tools": [CLOCK], "messages": [user("Hi"), assistant("Hello")]},
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Look closely."}]},
            {"role": "user", "content": [{"type": "text", "text": "Part one. "}, {"type": "text", "text": " Part two"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Seen "}]},
        ]
    },
    "image_part": {
        "messages": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
            assistant("A cat."),
        ]
    },
    "wrong_order": {"messages": [assistant("I begin"), assistant("and go on"), user("a"), user("b"), system("late")]},
    "unknown_role": {"messages": [user("a"), {"role": "critic", "content": "bad"}, assistant("b")]},
    "reasoning": {
        "messages": [
            user("1+1?"),
            assistant("<think>\nOne and one.\n</think>\n\n2"),
            user("And 2+2?"),
            assistant("4", reasoning_content="Two and two. "),
        ]
    },
    "prompt": {"messages": [system("S"), user("Go")], "add_generation_prompt": True},
    "prompt_without_thinking": {"messages": [user("Go")], "add_generation_prompt": True, "variables": {"enable_thinking": False}},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, user("x"), assistant("y")]},
    "no_content": {"messages": [user("x"), {"role": "assistant"}]},
}

with open("conversations.json", "w") as file:
    json.dump(CONVERSATIONS, file, ensure_ascii=True, indent=1)
    file.write("\n")
