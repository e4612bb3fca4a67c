"""Writes split_goldens.json: how the tokenizers package cuts texts with each published split pattern.

Per pattern and text: the number of pieces and a hash of where they end (bytes, FNV-1a over 8-byte little-endian numbers).
The texts are made here and in tests/text/pretokenize_test.cpp by the same few lines; those of a corpus are files under
$LLMTRAIN_DATA.

    LLMTRAIN_DATA=... python make_split_goldens.py [--dump DIR]    # --dump also writes texts and ends, to look at
"""
import json
import os
import pathlib
import sys

import tokenizers
from tokenizers import Regex, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ["LLMTRAIN_DATA"])
CORPORA = ["text/novels/valid.txt", "text/tinyshakespeare.txt", "text/tinystories_sample.txt",
           "text/wikitext-2/wiki.valid.tokens", "tokenizer/bpe_training/corpus.en", "tokenizer/fixtures/texts.inp"]

CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def cased(contraction, rest):
    lead = r"[^\r\n\p{L}\p{N}]?"
    return lead + CASED % ("*", "+") + contraction + "|" + lead + CASED % ("+", "*") + contraction + rest


DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PATTERNS = [
    GPT2,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,  # Llama 3, cl100k
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,  # DBRX
    SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,  # Qwen 2
    SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES,  # Qwen 3.5
    cased(SHORT + "?", r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES),  # o200k
    cased("", r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES),  # Tekken
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",  # DeepSeek V3 has the line ends themselves
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    "[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"\s?[" + DEEPSEEK_LETTERS + "]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    "[0-9][0-9][0-9]",
]

MIX = [0x20, 0x20, 0x20, 0x20, 0x09, 0x0A, 0x0A, 0x0D, 0x0B, 0x85, 0xA0, 0x2028, 0x3000, 0x27, 0x27, 0x27, 0x73, 0x74,
       0x72, 0x65, 0x76, 0x6D, 0x6C, 0x64, 0x53, 0x54, 0x52, 0x45, 0x56, 0x4D, 0x4C, 0x44, 0x17F, 0x212A, 0x61, 0x62,
       0x5A, 0xE9, 0xDF, 0x1C5, 0x2B0, 0xAA, 0x30, 0x31, 0x39, 0x663, 0xB2, 0xBD, 0x2167, 0x4E2D, 0x9FA6, 0x306E, 0x30AB,
       0xD55C, 0x10D0, 0x1C90, 0x0921, 0x301, 0x903, 0x20DD, 0x1F600, 0x200D, 0xFE0F, 0x2E, 0x2C, 0x21, 0x2F, 0x2F,
       0x2D, 0x5F, 0x28, 0xAB, 0x201C, 0x3001, 0xFF01, 0xFF5E, 0x2B, 0x24, 0x5E, 0x60, 0x7C, 0x20AC, 0x00, 0x01, 0x7F,
       0xE000, 0x378, 0x10FFFF]


def code_points():
    """Every code point up to U+31FFF and some of the others, each among letters, digits, spaces and itself."""
    out = []
    for c in [*range(0xD800), *range(0xE000, 0x32000), *range(0x32000, 0x110000, 257)]:
        c = chr(c)
        out += ["a", c, "b ", c, "1", c, c, "'", c, "A ", c, "\n", c, "/", c, " "]
    return "".join(out)


def mixture():
    out, state = [], 1
    for _ in range(300000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(chr(MIX[(state >> 33) % len(MIX)]) * (1 + (state >> 60) % 4 * ((state >> 58) % 4 == 0)))
    return "".join(out)


def texts():
    yield "code_points", code_points()
    yield "mixture", mixture()
    for name in CORPORA:
        yield name, (DATA / name).read_bytes().decode()


def ends_of(split, text):
    offset_of, at = [0], 0
    for c in text:
        at += len(c.encode())
        offset_of.append(at)
    return [offset_of[end] for _, (_, end) in split.pre_tokenize_str(text)]


def fnv(ends):
    h = 0xCBF29CE484222325
    for end in ends:
        for byte in end.to_bytes(8, "little"):
            h = (h ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % h


def main():
    dump = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    sets = dict(texts())
    made = {"made_by": "make_split_goldens.py, tokenizers " + tokenizers.__version__, "patterns": []}
    for number, regex in enumerate(PATTERNS):
        split = pre_tokenizers.Split(Regex(regex), "isolated")
        result = {}
        for name, text in sets.items():
            ends = ends_of(split, text)
            result[name] = [len(ends), fnv(ends)]
            if dump:
                (dump / ("%d.regex" % number)).write_bytes(regex.encode())
                (dump / ("%d.%s.ends" % (number, name.replace("/", "_")))).write_text("\n".join(map(str, ends)))
        made["patterns"].append({"regex": regex, "ends": result})
        print(number, regex[:60].encode("unicode_escape").decode(), flush=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)  # has GPT-2's pattern of its own
    made["byte_level"] = {name: [len(byte_level.pre_tokenize_str(text)), 0] for name, text in sets.items()}
    for name, pieces in made["byte_level"].items():
        assert pieces[0] == made["patterns"][0]["ends"][name][0]
    del made["byte_level"]
    (HERE / "split_goldens.json").write_text(json.dumps(made, indent=1) + "\n")
    if dump:
        for name, text in sets.items():
            (dump / ("%s.text" % name.replace("/", "_"))).write_bytes(text.encode())


main()
