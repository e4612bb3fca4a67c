#!/usr/bin/env python3
"""messages.py ROOT [--check]: lists every message of the programs as `file:line: text`.

Messages are the string literals of src and kernels that a user may read: errors, log lines, help, descriptions of deck
keys, notes, failed checks. Literals that C++ joins are one message, and {} stands where a value comes. Literals of a
single word (names, keys, files) are left out, and so are the stories that src/corpus writes. Of templates in Jinja the
messages are those of raise_exception(), of src/convert/tables the notes and reasons. To read them all:

    tests/style/messages.py . | less

With --check it lists only messages that use a private verb, with the field's word for it, and fails if there are any.
"""

import re
import sys
from pathlib import Path

ENDINGS = {".cpp", ".hpp", ".cu", ".cuh", ".jinja"}
TABLES = "convert/tables/*.txt"

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                                # comments
      |(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\((?P<raw>.*?)\)(?P=mark)"
      |(?:u8|[uUL])?"(?P<text>(?:[^"\\\n]|\\.)*)"
      |(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)+'               # characters, but not separators of digits
      |(?P<directive>^[ \t]*\#[ \t]*(?:include|error|pragma)[^\n]*)
      |\s+|.""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
ESCAPES = {"n": " ", "t": " ", "\\": "\\", '"': '"', "'": "'"}
PLACEHOLDER = re.compile(r"\{[^{}\s]*\}")
PROSE = re.compile(r"[^\W\d_]{2,}[^\w{}]* +(?:\S+ +)*[^\w\s]*[^\W\d_]{2,}")

# Private verbs and phrases, and what to write. Only what is never right in a message may stand here.
AVOIDED = {
    r"\b(?:is|are|was|were|be|been) begun\b": "started",
    r"\bis none of\b": "must be A, B or C; is not one of",
    r"\bnone is whole\b": "no intact one was found",
    r"\bowed\b": "pending",
    r"\bheed(?:s|ed)?\b": "use, ignore",
    r"^(?:Of|What) ": "a noun or an imperative",
    r"\b(?:go|goes|going|gone) on with\b": "resume, continue",
    r"\bmay be broken\b": "fractions allowed",
    r"\btaken apart\b": "profiled",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b)": "is not a ..., must be a ...",
    r"\bbehind (?:its|the) (?:end|colon)\b": "after the colon, has trailing bytes",
    r"\bso many (?:words|tokens|steps|beams|rows|ranks)\b": "this many, that many",
    r"\btold apart\b": "distinguished",
    r"\bgives? up its\b": "releases",
    r"\b(?:runs?|it|they) go(?:es)? on\b": "continues, lasts",
    r"\bby heart\b": "memorises",
    r"\bpretended\b": "emulated",
}

# Messages of the named chat templates, whose bytes are in exports and in the keys of cached data.
KEPT = {"a part of the content is no text"}
RAISED = re.compile(r"raise_exception\('((?:[^'\\]|\\.)*)'\)")

# What follows "no effect:", "not supported:" or ";" in a line of src/convert/tables.
NOTE = re.compile(r"-> (?:no effect|not supported[^:]*): (?P<reason>.*)|;(?P<note>.*)")

SAMPLE = r'''#include "a file"
// "no message" of a comment
throw UserError(code, fmt::format("{}: the run was begun " /* joined */
                                  "with {:.2f} GiB\n", path));
const char mark = '"'; count(1'000'000); key("word"); text(R"(two words)");
fail("a key is no text"); fail("there is no such file"); fail("it goes on behind its end"); fail("'{}' is not a count"); template("{%- if x is none of them -%}{{ raise_exception('a role is no word') }}{%- endif -%}");
'''


def literals(source):
    """Line and text of every string literal; adjacent ones are joined."""
    line, start, parts = 1, 0, []
    for match in TOKEN.finditer(source):
        token = match.group()
        text = match.group("raw") if match.group("raw") is not None else match.group("text")
        if text is not None:
            if not parts:
                start = line
            if match.group("raw") is None:
                text = re.sub(r"\\(.)", lambda m: ESCAPES.get(m.group(1), ""), text)
            parts.append(text)
        elif not token.isspace() and not token.startswith(("//", "/*")) and parts:
            yield start, "".join(parts)
            parts = []
        line += token.count("\n")
    if parts:
        yield start, "".join(parts)


def messages(source):
    for line, text in literals(source):
        parts = [raised.group(1) for raised in RAISED.finditer(text)] if text.startswith("{%") else [text]
        for part in parts:
            part = " ".join(PLACEHOLDER.sub("{}", part).split())
            if PROSE.search(part):
                yield line, part


def of_template(source):
    for line, text in enumerate(source.splitlines(), 1):
        for raised in RAISED.finditer(text):
            yield line, raised.group(1).replace("\\", "")


def of_table(source):
    whole = re.sub(r"\n +", lambda m: "\0 ", source)  # a line with those that continue it, counted by \0
    line = 1
    for text in whole.split("\n"):
        note = NOTE.search(text.replace("\0", "")) if "->" in text and not text.startswith("#") else None
        if note:
            yield line, (note.group("reason") or note.group("note")).strip()
        line += 1 + text.count("\0")


def all_messages(root):
    paths = [p for folder in ("src", "kernels") for p in (root / folder).rglob("*") if p.suffix in ENDINGS]
    for path in sorted([*paths, *(root / "src").glob(TABLES)]):
        name = path.relative_to(root)
        if name.parts[:2] != ("src", "corpus"):
            read = {".jinja": of_template, ".txt": of_table}.get(path.suffix, messages)
            for line, text in read(path.read_text(encoding="utf-8")):
                yield f"{name}:{line}", text


def avoided(text):
    return [better for pattern, better in AVOIDED.items() if re.search(pattern, text) and text not in KEPT]


def self_test():
    found = list(messages(SAMPLE))
    assert found[:2] == [(3, "{}: the run was begun with {} GiB"), (5, "two words")], found
    assert [len(avoided(text)) for _, text in found] == [1, 0, 1, 0, 2, 0, 1], found
    assert list(of_template("{{- bos -}}\n  {{- raise_exception('it is owed') -}}")) == [(2, "it is owed")]
    table = "[keys]\na b\n    -> not supported unless 1:\n       it is owed\nc -> d.e: 1=2; a; note\nf -> no effect: none"
    assert list(of_table(table)) == [(2, "it is owed"), (5, "a; note"), (6, "none")], list(of_table(table))


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    listed = list(all_messages(Path(arguments[0] if arguments else ".")))
    if "--check" not in sys.argv[1:]:
        for place, text in listed:
            print(f"{place}: {text}")
        return
    self_test()
    if len(listed) < 500:
        sys.exit(f"only {len(listed)} messages were found: is this the root of the sources?")
    wrong = [f"{place}: {text}\n    better: {'; '.join(avoided(text))}" for place, text in listed if avoided(text)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(listed)} messages without private verbs")


if __name__ == "__main__":
    main()
