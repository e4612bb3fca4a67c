#!/usr/bin/env python3
"""Texts that are no UTF-8: what `llmtool tokenizer encode` makes of them, beside the Python packages, and that `decode` gives
every byte back. Python's str holds no such bytes, so that the packages get U+FFFD for each of them, and

- byte-level tokenizers: the package cuts that text into pieces; of a piece without such bytes the ids must be the package's, of one
  with them those that tiktoken's byte pair merges (which work on bytes) give for the raw piece;
- tokenizers with a token for each byte: instead of U+FFFD, which some vocabularies have, a character for private use that none has;
  where the package gives the tokens of its bytes, the token of the raw byte (sentencepiece itself makes U+FFFD of raw bytes, which
  then are lost: llmtrain keeps them);
- others: the ids of the package for the text with U+FFFD.

Every difference is printed, and the exit status is 1 when there is one. Run by hand, as differential.py:

    LLMTRAIN_DATA=.../data python bytes_differential.py build/host/llmtool [megabytes] [tokenizer ...]
"""

import json
import os
import random
import sys
import tempfile

import sentencepiece
import tiktoken
import tokenizers
from differential import TOKENIZERS, corpus, first_difference, references, run
from tiktoken.load import load_tiktoken_bpe

STAND_IN = "\U0010FFFD"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def broken(size):
    """Mixed text with bytes put in, taken out and changed; and pieces of nothing but chance."""
    rng = random.Random(11)
    text = corpus(size).replace("\ufffd", "?").encode()
    out, at = bytearray(), 0
    while at < len(text):
        length = rng.choice([1, 2, 3, 8, 40, 200, 1000])
        out += text[at:at + length]
        at += length
        kind = rng.randrange(5)
        if kind == 0:
            out += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif kind == 1:
            out += rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x96", b"\xf0\x9f\x98", b"\x80" * 40])
        elif kind == 2:
            at += rng.randrange(1, 4)
    # differential.py has these; some stand for others, so that not every byte comes back.
    for special in (b"\0", b"<s>", b"</s>", b"<unk>", b"<|endoftext|>", "\u2581".encode(), "\ufffd".encode()):
        out = out.replace(special, b"?")
    return bytes(out)


def as_characters(raw):
    """The text with U+FFFD for every byte that belongs to no character, and the byte where each character begins."""
    escaped = raw.decode("utf-8", errors="surrogateescape")
    text = "".join("\ufffd" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in escaped)
    starts = [0]
    for c in escaped:
        starts.append(starts[-1] + (1 if 0xDC80 <= ord(c) <= 0xDCFF else len(c.encode())))
    return text, starts, [ord(c) - 0xDC00 for c in escaped if 0xDC80 <= ord(c) <= 0xDCFF]


def byte_level_ids(raw, split, ranks):
    """split(text) gives the borders of pieces, in characters."""
    text, starts, _ = as_characters(raw)
    merges = tiktoken.Encoding("ranks", pat_str=r"(?s:.+)", mergeable_ranks=ranks, special_tokens={})
    ids = []
    for begin, end in split(text):
        ids += merges._encode_single_piece(raw[starts[begin]:starts[end]])
    return ids


def ranks_of(vocabulary):
    """Of a byte-level tokenizer.json: the bytes of its tokens."""
    codes = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    letters = {chr(b): b for b in codes}
    letters.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in codes)})
    return {bytes(letters[c] for c in token): i for token, i in vocabulary.items() if all(c in letters for c in token)}


def with_raw_bytes(ids, byte_ids, stray):
    """The tokens of the bytes of the stand-in become those of the raw bytes, in turn."""
    instead = [byte_ids[b] for b in STAND_IN.encode()]
    out, i, next_stray = [], 0, 0
    while i < len(ids):
        if ids[i:i + len(instead)] == instead:
            out.append(byte_ids[stray[next_stray]])
            next_stray += 1
            i += len(instead)
        else:
            out.append(ids[i])
            i += 1
    assert next_stray == len(stray)
    return out


def expected(path, raw):
    """ids, and whether every byte must come back; None where the package itself does not keep what is needed."""
    text, _, stray = as_characters(raw)
    if path.endswith("llama3/tokenizer.model"):
        cutter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
        return byte_level_ids(raw, lambda t: [r for _, r in cutter.pre_tokenize_str(t)], load_tiktoken_bpe(path)), True
    if path.endswith(".model"):
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        ids = processor.encode(text)
        # The package takes raw bytes, too, and puts U+FFFD itself.
        assert processor.encode(raw) == ids
        byte_ids = [processor.piece_to_id("<0x%02X>" % b) for b in range(256)]
        if not processor.is_byte(byte_ids[0xEF]):
            return ids, False
        plain = "llama2" in path  # without a normalization that loses some
        return with_raw_bytes(processor.encode(text.replace("\ufffd", STAND_IN)), byte_ids, stray), plain
    tokenizer = tokenizers.Tokenizer.from_file(path)
    model = json.loads(tokenizer.to_str())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if os.path.basename(os.path.dirname(path)) == "gpt2":
        return byte_level_ids(raw, lambda t: [r for _, r in tokenizer.pre_tokenizer.pre_tokenize_str(t)],
                              ranks_of(tokenizer.get_vocab(with_added_tokens=False))), True
    if model["model"].get("byte_fallback"):
        byte_ids = [tokenizer.token_to_id("<0x%02X>" % b) for b in range(256)]
        ids = tokenizer.encode(text.replace("\ufffd", STAND_IN), add_special_tokens=False).ids
        return with_raw_bytes(ids, byte_ids, stray), "NFK" not in tokenizer.to_str()
    return ids, False


def main():
    tool = sys.argv[1]
    size = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 1_000_000
    chosen = sys.argv[3:] or ["gpt2/tokenizer.json", "llama2", "llama3/", "tok512", "_bytes.json", ".model"]
    raw, status = broken(size), 0
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "text")
        with open(file, "wb") as out:
            out.write(raw)
        for name, _ in references():
            path = os.path.normpath(os.path.join(TOKENIZERS, name))
            if not any(c in name for c in chosen):
                continue
            want, whole = expected(path, raw)
            listed = run(tool, "encode", "--ids", "--tokenizer", path, "--input", file)
            got = [int(x) for x in listed.split()]
            with open(file + ".ids", "wb") as out:
                out.write(listed)
            back = run(tool, "decode", "--tokenizer", path, "--input", file + ".ids")
            problems = []
            if got != want:
                i = first_difference(got, want)
                problems.append(f"ids at {i}: {got[max(0, i - 3):i + 8]} {want[max(0, i - 3):i + 8]}")
            if whole and back != raw:
                i = first_difference(back, raw)
                problems.append(f"text at byte {i}: {back[max(0, i - 10):i + 20]} {raw[max(0, i - 10):i + 20]}")
            print(f"{name}: {len(raw)} bytes, {len(want)} tokens, {len(as_characters(raw)[2])} bytes of no character: "
                  f"{'DIFFERS' if problems else 'equal' + (', every byte comes back' if whole else '')}", flush=True)
            for problem in problems:
                print("  " + problem, flush=True)
                status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
