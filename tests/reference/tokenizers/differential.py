#!/usr/bin/env python3
"""Encodes 10 MB of mixed text with `llmtool tokenizer encode` and with the Python packages, and decodes it again: ids, the
bytes of the text that each token stands for, and the text must be the same. Every difference is printed, and the exit
status is 1 when there is one. (For texts that are no UTF-8: bytes_differential.py.) Run by hand:

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0 protobuf
    LLMTRAIN_DATA=.../data python differential.py build/host/llmtool [megabytes] [tokenizer ...]
"""

import array
import bisect
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

DATA = os.environ["LLMTRAIN_DATA"]
TOKENIZERS = os.path.join(DATA, "tokenizer")


def novels():
    for folder in ("text/novels", "text/wikitext-2", "text"):
        path = os.path.join(DATA, folder)
        for name in sorted(os.listdir(path)):
            full = os.path.join(path, name)
            if os.path.isfile(full):
                with open(full, encoding="utf-8", errors="replace", newline="") as file:
                    yield file.read(600_000)


def code():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    for folder, _, names in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(names):
            with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
                yield file.read()


def invented(rng, size):
    """Scripts, emoji, runs of white space, numbers, broken UTF-8, and every character there is."""
    emoji = ["\U0001F600", "\U0001F469\u200D\U0001F680", "\U0001F1E9\U0001F1EA", "\u2764\uFE0F", "\U0001F44D\U0001F3FD"]
    spaces = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00A0", "\u3000", "\u2003", "\u0085", "\u200B", "\x0b", "\x0c"]
    ranges = [(0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x0400, 0x04FF), (0x0600, 0x06FF), (0x0900, 0x097F),
              (0x0E00, 0x0E7F), (0x0300, 0x036F), (0x1F300, 0x1FAFF), (0x20, 0x17F), (0x2000, 0x2BFF), (0xFF00, 0xFFEF),
              (0x10000, 0x107FF), (0x1D400, 0x1D7FF), (0x20, 0x7E), (0x20, 0x7E), (0x41, 0x7A)]
    words = ["the", "don't", "I'LL", "we've", "x1y2", "3.14159", "1,000,000", "0x1F", "foo_bar", "a" * 70, "__init__",
             "https://example.org/a?b=c&d=%20", "<s>", "</s>", "<unk>", "<0x41>", "<|endoftext|>", "\u2581", "\u2581\u2581a"]
    out, length = [], 0
    while length < size:
        kind = rng.randrange(10)
        if kind < 3:
            part = rng.choice(words)
        elif kind < 5:
            part = rng.choice(spaces) * rng.choice([1, 1, 1, 2, 3, 7, 40])
        elif kind == 5:
            part = str(rng.randrange(10 ** rng.randrange(1, 18)))
        elif kind == 6:
            part = rng.choice(emoji) * rng.choice([1, 1, 2])
        elif kind == 7:
            part = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 12))).decode("utf-8", errors="replace")
        elif kind == 8:
            part = "".join(chr(rng.randrange(0x20, 0xD7FF)) for _ in range(rng.randrange(1, 6)))
        else:
            low, high = rng.choice(ranges)
            part = "".join(chr(rng.randrange(low, high + 1)) for _ in range(rng.randrange(1, 12)))
        part += rng.choice(["", " ", " "])
        out.append(part)
        length += len(part.encode())
    return "".join(out)


def corpus(size):
    rng = random.Random(7)
    parts = ["".join(novels())[:int(size * 0.4)], ("".join(code()) * 4)[:int(size * 0.2)]]
    parts.append(invented(rng, size - sum(len(part.encode()) for part in parts)))
    return "".join(parts).replace("\0", " ")


def references():
    """name, make; make(path) gives encode and decode; encode gives ids and flat byte ranges, None where it has none."""
    import sentencepiece
    import tiktoken
    import tokenizers

    def hugging_face(path):
        tokenizer = tokenizers.Tokenizer.from_file(path)

        def encode(text):
            encoding = tokenizer.encode(text, add_special_tokens=False)
            starts = array.array("q", itertools.accumulate((len(c.encode()) for c in text), initial=0))
            ranges = array.array("q", itertools.chain.from_iterable(encoding.offsets))
            # Ranges of pieces that the library gives back unconverted (of a normalized text) are not ranges of the text.
            if max(ranges, default=0) > len(text):
                return encoding.ids, None
            return encoding.ids, array.array("q", (starts[i] for i in ranges))
        return encode, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)

    def sentence_piece(path):
        processor = sentencepiece.SentencePieceProcessor(model_file=path)

        def encode(text):
            pieces = processor.encode(text, return_type="proto").pieces
            return processor.encode(text), array.array("q", itertools.chain.from_iterable((p.begin, p.end) for p in pieces))
        return encode, processor.decode

    def llama3(path):
        regex = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                 r"\s*[\r\n]+|\s+(?!\S)|\s+")
        from tiktoken.load import load_tiktoken_bpe
        encoding = tiktoken.Encoding("llama3", pat_str=regex, mergeable_ranks=load_tiktoken_bpe(path), special_tokens={
            "<|reserved_%d|>" % i: 128000 + i for i in range(256)})
        # It goes wrong on some texts of more than a few hundred thousand characters; parts are cut where words are.
        def encode(text):
            ids, begin = [], 0
            while begin < len(text):
                end = min(begin + 100_000, len(text))
                while end < len(text) and not (text[end] == " " and text[end - 1].isascii() and text[end - 1].isalpha()
                                               and text[end + 1:end + 2].isalpha()):
                    end += 1
                ids += encoding.encode_ordinary(text[begin:end])
                begin = end
            # As in the tokenizers package, a part of a character stands for the whole of it.
            ends = itertools.accumulate((len(encoding.decode_single_token_bytes(i)) for i in ids), initial=0)
            starts = array.array("q", itertools.accumulate((len(c.encode()) for c in text), initial=0))
            ranges = array.array("q")
            for a, b in itertools.pairwise(ends):
                ranges.append(starts[bisect.bisect_right(starts, a) - 1])
                ranges.append(starts[bisect.bisect_left(starts, b)])
            return ids, ranges
        return encode, encoding.decode

    yield "gpt2/tokenizer.json", hugging_face
    yield "llama2/tokenizer.json", hugging_face
    yield "llama2/tokenizer.model", sentence_piece
    yield "../weights/stories260K/tok512.model", sentence_piece
    yield "llama3/tokenizer.model", llama3
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in sorted(os.listdir(os.path.join(folder, "synthetic"))) if os.path.isdir(os.path.join(folder, "synthetic")) else []:
        if name.endswith(".json") and name != "goldens.json":
            yield os.path.join(folder, "synthetic", name), hugging_face
        if name.endswith(".model"):
            yield os.path.join(folder, "synthetic", name), sentence_piece


def first_difference(got, want):
    return next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))


def run(tool, *arguments):
    return subprocess.run([tool, "tokenizer", *arguments], check=True, capture_output=True).stdout


def compare(tool, tokenizer, text, file, encode, decode):
    """What is different, as lines, and a summary."""
    begin = time.time()
    want, want_ranges = encode(text)
    python = time.time() - begin
    begin = time.time()
    raw = run(tool, "encode", "--ids", "--tokenizer", tokenizer, "--input", file)
    ours = time.time() - begin
    got = [int(x) for x in raw.split()]
    problems = []
    if got != want:
        i = first_difference(got, want)
        problems.append(f"ids at {i}: {got[i - 3:i + 8]} {want[i - 3:i + 8]} {json.dumps(decode(want[max(0, i - 5):i + 8]))}")
    table = run(tool, "encode", "--tokenizer", tokenizer, "--input", file)
    rows = array.array("q", map(int, itertools.chain.from_iterable(
        m.groups() for m in re.finditer(rb"^ *(\d+) +(\d+)-(\d+) ", table, re.M))))
    if list(rows[::3]) != got:
        problems.append("ids with ranges are not those without")
    if want_ranges is not None:
        got_ranges = array.array("q", itertools.chain.from_iterable(zip(rows[1::3], rows[2::3])))
        if got_ranges != want_ranges:
            i = first_difference(got_ranges, want_ranges) // 2 * 2
            problems.append(f"ranges at token {i // 2}: {list(got_ranges[i:i + 6])} {list(want_ranges[i:i + 6])}")
    ids = file + ".ids"
    with open(ids, "wb") as out:
        out.write(raw)
    if run(tool, "decode", "--tokenizer", tokenizer, "--input", ids).decode("utf-8", errors="replace") != decode(want):
        problems.append("text")
    return problems, (f"{len(text.encode())} bytes, {len(want)} tokens, python {python:.1f} s, ours {ours:.1f} s, "
                      f"ranges {'not compared' if want_ranges is None else 'compared'}")


def main():
    tool = sys.argv[1]
    size = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 10_000_000
    chosen = sys.argv[3:]
    text = corpus(size)
    status, count = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "text")
        with open(file, "wb") as out:
            out.write(text.encode())
        for path, make in references():
            if chosen and not any(c in path for c in chosen):
                continue
            full = os.path.normpath(os.path.join(TOKENIZERS, path))
            problems, summary = compare(tool, full, text, file, *make(full))
            count += 1
            print(f"{os.path.relpath(full, TOKENIZERS)}: {summary}: {'DIFFERS' if problems else 'equal'}", flush=True)
            for problem in problems:
                print("  " + problem, flush=True)
                status = 1
    print(f"{count} tokenizers compared, {'DIFFERENCES' if status else 'no difference'}")
    sys.exit(status)


if __name__ == "__main__":
    main()
