#!/usr/bin/env python3
"""make_infilling_goldens.py: texts cut for fill-in-the-middle, as ids of the tokenizers package, for
tests/data/infilling_test.cpp.

    pip install tokenizers==0.23.3 xxhash==4.1.0
    python make_infilling_goldens.py

The order of the parts is that of Megatron-LM's GPTFIMDataset (PSM, and the second variant of SPM in Bavarian et al.
2022). Which texts are cut, and before which characters, is drawn by Philox4x32-10 (Salmon et al. 2011), whose key is the
XXH3 of the text's bytes and whose counter is the number of the text: the four words decide whether, in which order, and
the two places. Parts behind the first get no space of SentencePiece's in front.
"""
import json
import pathlib

import xxhash
from tokenizers import Tokenizer, normalizers

here = pathlib.Path(__file__).parent
synthetic = here.parent / "tokenizers" / "synthetic"
SENTINELS = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>"]
EOS = "</s>"
TEXTS = ["def add(a, b):\n    return a + b\n", "x", "caf\u00e9 \u6771\u4eac \U0001f642 und \u00fcber", "past the light",
         "def add(a, b):\n    return a + b\n", "  spaces  and\ttabs ", "Hello World " * 40, "1234567890"] + [
             f"line {i}\n" * (i % 5 + 1) for i in range(24)]


def philox(key, low):
    k, c = [key & 0xFFFFFFFF, key >> 32], [low & 0xFFFFFFFF, low >> 32, 0, 0]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def rearranged(text, number, rate, spm_rate):
    """The parts of a text: (sentinel, or None for the text itself; is the part the begin of the text)."""
    words = philox(xxhash.xxh3_64_intdigest(text.encode()), number)
    uniform = [(word + 0.5) / 2**32 for word in words]
    if not uniform[0] < rate:
        return [(text, True)]
    first, last = sorted(word * (len(text) + 1) >> 32 for word in words[2:])
    prefix, middle, suffix = (text[:first], True), (text[first:last], False), (text[last:], False)
    pre, mid, suf = ((token, None) for token in SENTINELS)
    if uniform[1] < spm_rate:
        return [pre, suf, suffix, mid, prefix, middle]
    return [pre, prefix, suf, suffix, mid, middle]


def main():
    cases = []
    for name in ("gpt2.json", "llama2.json"):
        tokenizer, behind = (Tokenizer.from_file(str(synthetic / name)) for _ in range(2))
        for each in (tokenizer, behind):
            each.add_special_tokens(SENTINELS)
        if name == "llama2.json":  # Prepend is the part that is left out
            behind.normalizer = normalizers.Replace(" ", "\u2581")
        for rate, spm_rate in ((1.0, 0.0), (1.0, 1.0), (0.6, 0.5)):
            documents = []
            for number, text in enumerate(TEXTS):
                ids = []
                for part, begins in rearranged(text, number, rate, spm_rate):
                    if begins is None:
                        ids.append(tokenizer.token_to_id(part))
                    elif part:
                        ids += (tokenizer if begins else behind).encode(part, add_special_tokens=False).ids
                documents.append(ids + [tokenizer.token_to_id(EOS)])
            cases.append({"tokenizer": name, "fim_rate": rate, "fim_spm_rate": spm_rate, "documents": documents})
    text = json.dumps({"sentinels": SENTINELS, "eos": EOS, "texts": TEXTS, "cases": cases})
    (here / "goldens.json").write_text(text + "\n")


main()
