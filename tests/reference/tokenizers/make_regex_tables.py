#!/usr/bin/env python3
"""Writes src/text/unicode/regex_scripts.inc: the scripts and properties that Oniguruma, as the tokenizers package
carries it, knows; of Alphabetic, Uppercase and Lowercase what the general categories do not say.

    pip install tokenizers==0.23.3
    python make_regex_tables.py
"""

import os

import tokenizers
from tokenizers import Regex, pre_tokenizers

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = ("Han Hiragana Katakana Hangul Latin Cyrillic Greek Arabic Hebrew Thai Devanagari Bengali Tamil Telugu Armenian Georgian "
           "Bopomofo Lao Khmer Myanmar Tibetan Ethiopic Mongolian").split()
PROPERTIES = ["Other_Alphabetic", "Other_Uppercase", "Other_Lowercase", "Emoji", "Extended_Pictographic"]
ALL = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def ranges(regex):
    out = []
    for text, _ in pre_tokenizers.Split(Regex(regex), "removed", invert=True).pre_tokenize_str(ALL):
        for c in map(ord, text):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def main():
    items = []
    for script in SCRIPTS + PROPERTIES:
        for i, (first, last) in enumerate(ranges(r"\p{%s}+" % script)):  # the name stands with the first range
            items.append("{\"%s\", 0x%X, 0x%X}," % (script if i == 0 else "", first, last))
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) > 118:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + item
    with open(os.path.join(HERE, "../../../src/text/unicode/regex_scripts.inc"), "w", encoding="ascii") as file:
        file.write(f"// Scripts and properties as Oniguruma of tokenizers {tokenizers.__version__} has them.\n"
                   "// Written by tests/reference/tokenizers/make_regex_tables.py.\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
