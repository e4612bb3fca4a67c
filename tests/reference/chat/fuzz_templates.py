"""Renders small random templates with Jinja2 and with llmtool and prints where they differ.

    python fuzz_templates.py LLMTOOL [TEMPLATES] [SEED]

Both must raise or give the same text. Where llmtool alone raises, it must say that something is not supported; that is
counted, and is no difference. Versions: transformers 5.24.0, jinja2 3.1.6, tokenizers 0.23.3.
"""
import collections
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

MODEL = pathlib.Path(__file__).parents[1] / "sft/model"
MESSAGES = [
    {"role": "system", "content": " B\u00e9 Brief\t\u00b2 "},
    {"role": "user", "content": "Wor\u00f6d's A-b <c>\nx=1, y = 22", "n": 3, "f": 2.5, "l": [3, 1, 2], "d": {"b": 1, "A": None}},
    {"role": "assistant", "content": "yes. \u00c9.\u03a3. No"},
]


class Source:
    def __init__(self, numbers):
        self.numbers = numbers
        self.names = 0

    def one(self, *choices):
        choice = self.numbers.choice(choices)
        return choice() if callable(choice) else choice

    def text(self, depth):
        if depth <= 0:
            return self.one("messages[0].content", "messages[1]['content']", "messages[-1].role", "'a b'", "'\\n'", "''", "'1.50'", "m.role", "'{:>5}|{}'")
        t, i = (lambda: self.text(depth - 1)), (lambda: self.integer(depth - 1))
        return self.one(
            lambda: f"({t()} + {t()})", lambda: f"({t()} ~ {self.value(depth - 1)})", lambda: f"{t()}[{i()}:]", lambda: f"{t()}[:{i()}]",
            lambda: f"{t()}[::{self.one('-1', '2', '1')}]", lambda: f"{t()}[{i()}]",
            lambda: f"({t()} if {self.truth(depth - 1)} else {t()})", lambda: f"({t()} or {t()})",
            lambda: t() + "." + self.one("upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip('. n')",
                                         "expandtabs()", "expandtabs(3)", "zfill(9)", "center(11, '*')", "ljust(8) ~ '|'", "replace('e', '<E>')",
                                         "replace('', '-', 2)", "split(' ')[0]", "split()[-1]", "partition('-')[2]", "removeprefix('W')", "rsplit('-', 1)[0]"),
            lambda: f"({t()} | {self.one('upper', 'lower', 'title', 'capitalize', 'trim', 'reverse', 'first', 'last', 'e', 'string', 'indent(2, true)', 'center(12)')})",
            lambda: f"({self.value(depth - 1)} | tojson)", lambda: f"({self.value(depth - 1)} | string)",
            lambda: f"({self.items(depth - 1)} | join({self.one(repr(', '), repr(''))}))",
            lambda: f"'{{:{self.spec('s')}}}'.format({t()})", lambda: f"'{{:{self.spec('d')}}}'.format({i()})",
            lambda: f"'{{0.role!r}}/{{0[content]:.3}}/{{x:{self.spec('f')}}}'.format(messages[1], x={self.real()})",
            lambda: f"('%{self.one('', '-', '0', '+')}{self.one('', '6')}{self.one('d', 'x', '.2f', 's', 'r', 'c', 'e')}' % {self.one(i, self.real)})")

    def spec(self, kind):
        fill = self.one("", "", "*", "0", "\u00e9") if self.numbers.random() < 0.5 else ""
        align = self.one("<", ">", "^", "=") if fill else self.one("", "<", ">", "^", "=", "")
        sign = self.one("", "", "+", " ") if kind != "s" else self.one("", "", "", "+")
        return fill + align + sign + self.one("", "", "0") + self.one("", "5", "12") + self.one("", "", ",") + self.one("", ".2", ".0") + self.one("", kind, kind, "x", "e", "%")

    def integer(self, depth):
        if depth <= 0:
            return self.one("0", "1", "2", "-1", "7", "1234567", "messages[1].n", "loop.index", "true")
        i = lambda: self.integer(depth - 1)
        return self.one(lambda: f"({i()} {self.one('+', '-', '*', '//', '%')} {i()})", lambda: f"({self.text(depth - 1)} | length)",
                        lambda: f"({self.items(depth - 1)} | length)", lambda: f"({self.text(depth - 1)}.{self.one('find', 'count')}('e'))",
                        lambda: f"({self.text(depth - 1)} | {self.one('int', 'wordcount', 'int(7)')})", lambda: f"(-{i()}) | abs", i)

    def real(self):
        return self.one("2.5", "-0.125", "1e20", "messages[1].f", "0.1", "1234567.891", "1e-7")

    def truth(self, depth):
        return self.one(lambda: f"{self.value(depth)} {self.one('==', '!=')} {self.value(depth)}", lambda: f"{self.integer(depth)} {self.one('<', '>=')} {self.integer(depth)}",
                        lambda: f"{self.text(depth)} in {self.text(depth)}", lambda: f"not {self.value(depth)}",
                        lambda: f"{self.value(depth)} is {self.one('string', 'number', 'mapping', 'iterable', 'defined', 'none', 'sequence', 'integer', 'callable')}",
                        lambda: f"{self.text(depth)}.{self.one('istitle', 'isupper', 'islower', 'isalpha', 'isdigit', 'isalnum', 'isspace', 'isascii', 'isnumeric', 'isdecimal', 'isprintable')}()",
                        lambda: f"{self.integer(depth)} is {self.one('odd', 'even', 'divisibleby 3', 'gt 2')}",
                        lambda: f"{self.text(depth)}.{self.one('startswith', 'endswith')}({self.text(0)})", lambda: f"{self.text(depth)} is {self.one('upper', 'lower')}")

    def items(self, depth):
        if depth <= 0:
            return self.one("messages", "messages[1].l", "[1, 'a', none]", "messages[1].d", "[]", "'ab'", "range(4)", "[[1, 2], [3, 4]]")
        x = lambda: self.items(depth - 1)
        return self.one(lambda: f"{self.text(depth - 1)}.{self.one('split()', 'split(' + repr('e') + ')', 'splitlines()')}", lambda: f"({x()} | list)",
                        lambda: f"({x()} | {self.one('reverse', 'unique', 'sort', 'batch(2)', 'slice(2)')} | list)",
                        lambda: f"(messages | map(attribute='{self.one('role', 'content', 'n')}') | list)", lambda: f"({x()} | map('string') | list)",
                        lambda: f"(messages | {self.one('selectattr', 'rejectattr')}('n', 'defined') | map(attribute='role') | list)",
                        lambda: f"({x()} | select('{self.one('string', 'number', 'defined')}') | list)", lambda: f"[{self.value(depth - 1)}, {self.value(depth - 1)}]",
                        lambda: f"{x()}[{self.integer(0)}:]", lambda: "(messages[1].d | dictsort)", lambda: "messages[1].d.items()")

    def value(self, depth):
        return self.one(lambda: self.text(depth), lambda: self.text(depth), lambda: self.integer(depth), self.real, lambda: self.items(depth), "none", "missing",
                        "messages[1].d.A", lambda: f"({self.truth(depth - 1)})" if depth > 0 else "false", "('a', 1)", "{'k': [1.0, none]}")

    def trim(self, text):
        kinds = self.one(("{%", "%}"), ("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}"), ("{%+", "%}"))
        return f"{kinds[0]} {text} {kinds[1]}"

    def space(self):
        return self.one("", "", " ", "\n", "  \n ", "x\n", "|")

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.numbers.randint(1, 3))) + self.space()

    def statement(self, depth):
        put = lambda: f"{self.one('{{', '{{-')} {self.value(2)} {self.one('}}', '-}}', '}}')}"
        if depth <= 0:
            return put()
        self.names += 1
        name, inner = f"v{self.names}", lambda: self.body(depth - 1)
        t = self.trim
        return self.one(
            put, put,
            lambda: t(f"if {self.truth(1)}") + inner() + (t(f"elif {self.truth(1)}") + inner() if self.numbers.random() < 0.3 else "") + (t("else") + inner() if self.numbers.random() < 0.5 else "") + t("endif"),
            lambda: t(f"for m in {self.items(1)}" + self.one("", f" if m is {self.one('string', 'mapping', 'number')}")) + inner() +
            self.one("", "{{ loop.index0 }}{{ loop.last }}", "{{ loop.changed(m) }}", "{{ loop.changed(loop.index // 2, 1) }}", "{{ loop.cycle('p', 'q') }}", "{{ loop.previtem }}{{ loop.revindex }}") +
            (t(f"if {self.truth(1)}") + t(self.one("break", "continue")) + t("endif") if self.numbers.random() < 0.3 else "") + inner() + (t("else") + inner() if self.numbers.random() < 0.3 else "") + t("endfor"),
            lambda: t(f"set {name} = {self.value(2)}") + "{{ " + name + " }}",
            lambda: t(f"set {name}") + inner() + t("endset") + "{{ " + name + " | trim }}",
            lambda: t(f"set {name} = namespace(a={self.value(1)})") + t(f"set {name}.a = {self.value(1)}") + "{{ " + name + ".a }}",
            lambda: t(f"macro {name}(a, b={self.value(1)})") + inner() + "{{ a }}{{ b }}{{ varargs }}" + t("endmacro") + "{{ " + f"{name}({self.value(1)})" + " }}{{ " + f"{name}.arguments ~ {name}.name ~ {name}.catch_varargs" + " }}",
            lambda: t(f"macro {name}(a)") + "[{{ caller(a) }}]" + t("endmacro") + t(f"call(y) {name}({self.value(1)})") + "{{ y }}" + inner() + t("endcall"),
            lambda: t(f"with a = {self.value(1)}, b = {self.value(1)}") + "{{ a }}{{ b }}" + inner() + t("endwith"),
            lambda: t(f"filter {self.one('upper', 'trim', 'title')}") + inner() + t("endfilter"),
            lambda: t(f"set {name} = joiner('+')") + "{{ " + f"{name}() }}}}{{{{ {name}()" + " }}",
            lambda: t(f"set {name} = cycler(1, {self.value(0)})") + "{{ " + f"{name}.next() }}}}{{{{ {name}.current" + " }}",
            lambda: "{# " + self.one("c", "{{ x }}") + self.one(" #}", " -#}"))


def theirs(template):
    try:
        return _compile_jinja_template(template).render(messages=MESSAGES, add_generation_prompt=False, tools=None, documents=None)
    except Exception as error:
        return error


def main():
    tool, count, seed = sys.argv[1], int((sys.argv[2:] or ["200"])[0]), int((sys.argv[3:] or ["1"])[0])
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        rows, path = pathlib.Path(folder) / "rows.jsonl", pathlib.Path(folder) / "t.jinja"
        rows.write_text(json.dumps({"messages": MESSAGES}) + "\n")
        for number in range(count):
            template = Source(random.Random(seed * 1000003 + number)).body(2)
            expected = theirs(template)
            path.write_bytes(template.encode())
            run = subprocess.run([tool, "chat", "render", "--model", MODEL, "--template", path, "--input", rows, "--train-on", "all", "--ids", "--parse-special"],
                                 capture_output=True, timeout=60)
            message = run.stderr.decode().strip()
            if run.returncode not in (0, 65):
                counts["crash"] += 1
                print(f"CRASH {run.returncode} {template!r} {message[-300:]}")
            elif run.returncode != 0:
                known = isinstance(expected, Exception) or "support" in message or "does not fit 64 bits" in message or "no token to train" in message
                counts["both raise" if isinstance(expected, Exception) else "not supported" if known else "differ"] += 1
                if not known:
                    print(f"ONLY LLMTOOL RAISES {template!r}\n  {message[-200:]}\n  {expected!r}")
            else:
                text = tokenizer.decode(json.loads(run.stdout)["input_ids"], skip_special_tokens=False)
                same = text == expected
                counts["same" if same else "differ"] += 1
                if not same:
                    print(f"DIFFERENT {template!r}\n  llmtool {text!r}\n  jinja2  {expected!r}")
    print(dict(counts))
    sys.exit(0 if counts["differ"] + counts["crash"] == 0 else 1)


if __name__ == "__main__":
    main()
