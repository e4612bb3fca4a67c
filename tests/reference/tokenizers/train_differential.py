#!/usr/bin/env python3
"""Learns a tokenizer from every file of text under $LLMTRAIN_DATA with `llmtool tokenizer train` and with the tokenizers
package: both files must be the same, byte for byte. The package then loads the one that llmtool wrote, and both encode
a mixed text with it. Every difference is printed, and the exit status is 1 when there is one. Run by hand:

    pip install tokenizers==0.23.3 transformers
    LLMTRAIN_DATA=.../data python train_differential.py build/host/llmtool [part of a file's name ...]
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = pathlib.Path(os.environ["LLMTRAIN_DATA"])
HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CASES = [("gpt2", 32000, 0, ["<|endoftext|>"]), ("llama3", 10000, 2, ["<s>", "</s>"])]


def is_text(path):
    try:
        return len(path.read_bytes().decode()) > 1000
    except UnicodeDecodeError:
        return False


def learn(path, split, size, least, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "llama3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(path)], trainers.BpeTrainer(
        vocab_size=size, min_frequency=least, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer.to_str(pretty=True)


def run(tool, *arguments):
    return subprocess.run([tool, "tokenizer", *map(str, arguments)], check=True, capture_output=True).stdout


def encodes_equally(tool, folder, text):
    from transformers import AutoTokenizer
    want = AutoTokenizer.from_pretrained(folder).encode(text.read_bytes().decode(), add_special_tokens=False)
    got = run(tool, "encode", "--ids", "--tokenizer", folder, "--input", text)
    return [int(x) for x in got.split()] == want


def main():
    tool, chosen, status = sys.argv[1], sys.argv[2:], 0
    files = [path for path in sorted(DATA.rglob("*")) if path.is_file() and is_text(path)
             and path.suffix not in (".md", ".bin", ".model") and (not chosen or any(c in str(path) for c in chosen))]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        probe = folder / "probe.txt"
        probe.write_bytes((HERE / "synthetic" / "goldens.json").read_bytes() if (HERE / "synthetic" / "goldens.json").exists()
                          else (DATA / "tokenizer/fixtures/texts.inp").read_bytes())
        for number, path in enumerate(files):
            text = folder / "text.txt"
            text.write_bytes(path.read_bytes())
            for split, size, least, special in CASES:
                begin = time.time()
                want = learn(text, split, size, least, special)
                python, begin = time.time() - begin, time.time()
                out = folder / f"{number}-{split}"
                run(tool, "train", "--input", text, "--vocab-size", size, "--min-frequency", least, "--split", split,
                    "--output", out, "--special", *special)
                ours = time.time() - begin
                same = (out / "tokenizer.json").read_bytes() == want.encode()
                encodes = encodes_equally(tool, out, probe)
                status |= not (same and encodes)
                print(f"{path.relative_to(DATA)} {split} {size}: file {'equal' if same else 'DIFFERS'}, ids "
                      f"{'equal' if encodes else 'DIFFER'}, python {python:.1f} s, ours {ours:.1f} s", flush=True)
    sys.exit(int(status))


if __name__ == "__main__":
    main()
