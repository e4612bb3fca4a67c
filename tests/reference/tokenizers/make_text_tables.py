#!/usr/bin/env python3
"""Writes src/text/unicode/character_sets.inc and src/text/pipeline/normalization.inc: what the tokenizers package does
with every code point. Its parts carry different versions of Unicode (normalization forms of 9 with later composites,
Rust's of 16 or 17), so the tables are read off its behaviour and not taken from one version of the Unicode data.

    pip install tokenizers==0.23.3 regex
    python make_text_tables.py
"""

import os
import unicodedata

import regex
import tokenizers
from tokenizers import normalizers, pre_tokenizers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "src", "text")
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEADER = "// tokenizers %s, %s. Written by tests/reference/tokenizers/make_text_tables.py.\n"

def lines(items):
    out, line = [], ""
    for item in items:
        if line and len(line) + 1 + len(item) > 120:
            out.append(line)
            line = ""
        line += (" " if line else "") + item
    return "\n".join(out + [line]) + "\n"

def ranges(members):
    out = []
    for c in sorted(members):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out

def set_of(name, members):
    return f"constexpr Range {name}[] = {{\n" + lines(
        f"{{0x{a:X}}}," if a == b else f"{{0x{a:X}, 0x{b:X}}}," for a, b in ranges(members)) + "};\n"

def pieces(pre_tokenizer, c):
    return len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "b"))

def removed_by(normalizer):
    return [c for c in ALL if normalizer.normalize_str("a" + chr(c) + "b") == "ab"]

def bert(**on):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **on})

def sets():
    out = ""
    accents = bert(strip_accents=True)
    control = set(removed_by(bert(clean_text=True))) - {0, 0xFFFD}
    whitespace = pre_tokenizers.Whitespace()
    words = [c for c in ALL if pieces(whitespace, c) == 1]
    spaces = [c for c in ALL if pieces(whitespace, c) == 2]
    strip = normalizers.Strip()
    assert spaces == [c for c in ALL if strip.normalize_str(chr(c)) == ""]
    digits = pre_tokenizers.Digits(individual_digits=True)
    punctuation = pre_tokenizers.Punctuation()
    marks = pre_tokenizers.BertPreTokenizer()
    signs = [c for c in ALL if pieces(punctuation, c) == 3]
    assert signs == [c for c in ALL if c not in spaces and pieces(marks, c) == 3]
    out += set_of("white_space", spaces)
    out += set_of("word_characters", words)
    out += set_of("numeric_characters", [c for c in ALL if pieces(digits, c) == 3])
    out += set_of("punctuation_characters", signs)
    out += set_of("bert_controls", control)
    out += set_of("nonspacing_marks", removed_by(accents))
    out += set_of("combining_marks", removed_by(normalizers.StripAccents()))
    return out

def lowercase():
    """Runs of code points at a distance of 1 or 2 that move by the same amount."""
    lower = normalizers.Lowercase()
    moves = {}
    for c in ALL:
        to = lower.normalize_str(chr(c))
        if c == 0x130:
            assert to == "i\u0307"
            to = "i"
        assert len(to) == 1
        if ord(to) != c:
            moves[c] = ord(to) - c
    runs = []
    for c, delta in moves.items():
        for run in reversed(runs[-2:]):
            step = c - run[1]
            if run[3] == delta and step in (1, 2) and run[2] in (0, step):
                run[1], run[2] = c, step
                break
        else:
            runs.append([c, c, 0, delta])
    table = {}
    for first, last, step, delta in runs:
        for c in range(first, last + 1, step or 1):
            assert c not in table
            table[c] = delta
    assert table == moves
    runs.sort()
    return "constexpr CaseRun case_runs[] = {\n" + lines(
        f"{{0x{a:X}, 0x{b:X}, {step or 1}, {delta}}}," for a, b, step, delta in runs) + "};\n"

def graphemes():
    def members(name):
        pattern = regex.compile(r"\p{%s}" % name)
        return [c for c in ALL if pattern.match(chr(c))]
    out = ""
    for name in ("Control", "Extend", "SpacingMark", "Prepend"):
        out += set_of("grapheme_" + name.lower(), members("Grapheme_Cluster_Break=" + name))
    return out + set_of("pictographic", members("Extended_Pictographic"))

def combining_class(nfd, c):
    """As the package sees it: 0 for marks that its tables do not have."""
    value = unicodedata.combining(chr(c))
    if value == 0:
        return 0
    for probe in (0x301, 0x327, 0x345, 0x334):  # of classes 230, 202, 240, 1
        other = unicodedata.combining(chr(probe))
        if other == value:
            continue
        text = "a" + (chr(c) + chr(probe) if other < value else chr(probe) + chr(c))
        return value if nfd.normalize_str(text) != text else 0
    raise AssertionError(hex(c))

def form_runs(name, decompositions):
    """Runs of code points whose decompositions have the same length, and the characters of all."""
    runs = []
    for c, text in decompositions:
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == len(text):
            runs[-1][1] = c
        else:
            runs.append([c, c, len(text)])
    return (f"constexpr FormRun {name}_runs[] = {{\n" + lines(f"{{0x{a:X}, 0x{b:X}, {n}}}," for a, b, n in runs) + "};\n"
            f"constexpr char32_t {name}_characters[] = {{\n"
            + lines(f"0x{ord(x):X}," for _, text in decompositions for x in text) + "};\n")

def forms():
    nfc, nfd, nfkd = normalizers.NFC(), normalizers.NFD(), normalizers.NFKD()
    classes, single, pairs, uncomposed, compatible = [], [], [], [], []
    for c in ALL:
        value = combining_class(nfd, c)
        if value:
            if classes and classes[-1][1] == c - 1 and classes[-1][2] == value:
                classes[-1][1] = c
            else:
                classes.append([c, c, value])
        if 0xAC00 <= c < 0xAC00 + 11172:
            continue
        canonical = nfd.normalize_str(chr(c))
        if canonical != chr(c):
            first = unicodedata.decomposition(chr(c)).split()
            step = [int(x, 16) for x in first]
            assert "".join(nfd.normalize_str(chr(x)) for x in step) == canonical, hex(c)
            composes = len(step) == 2 and nfc.normalize_str(canonical) == nfc.normalize_str(chr(c)) == chr(c)
            if len(step) == 1:
                single.append((c, chr(step[0])))
            else:
                pairs.append((c, *step))
            if len(step) == 2 and not composes:
                uncomposed.append(c)
        full = nfkd.normalize_str(chr(c))
        if full != canonical:
            compatible.append((c, full))
    out = "constexpr ClassRun combining_classes[] = {\n"
    out += lines(f"{{0x{a:X}, 0x{b:X}, {v}}}," for a, b, v in classes) + "};\n"
    out += form_runs("canonical", single)
    out += "constexpr CanonicalPair canonical_pairs[] = {\n"
    out += lines(f"{{0x{c:X}, 0x{a:X}, 0x{b:X}}}," for c, a, b in pairs) + "};\n"
    out += "constexpr char32_t uncomposed[] = {\n" + lines(f"0x{c:X}," for c in uncomposed) + "};\n"
    out += form_runs("compatible", compatible)
    return out

def main():
    regex_version = "regex " + regex.__version__ if hasattr(regex, "__version__") else "regex"
    with open(os.path.join(FOLDER, "unicode", "character_sets.inc"), "w", encoding="ascii") as file:
        file.write(HEADER % (tokenizers.__version__, regex_version) + sets() + lowercase() + graphemes())
    with open(os.path.join(FOLDER, "pipeline", "normalization.inc"), "w", encoding="ascii") as file:
        file.write(HEADER % (tokenizers.__version__, "unicodedata " + unicodedata.unidata_version) + forms())

if __name__ == "__main__":
    main()
