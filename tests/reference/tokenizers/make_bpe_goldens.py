"""Writes bpe_goldens.json: the vocabularies and merges that the tokenizers package learns from texts.

Per case: text, split pattern, whether the text is given in lines (as train() reads files) or as a whole, size, minimum
frequency, special tokens; the numbers of tokens and merges, and a hash of each (FNV-1a over the tokens in order of ids, of
merges "left right", each ended by a zero byte); bytes and hash of the tokenizer.json. The made texts are repeated in tests/text/bpe_train_test.cpp; the others
are files under $LLMTRAIN_DATA.

    LLMTRAIN_DATA=... python make_bpe_goldens.py
"""
import json
import os
import pathlib

import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ["LLMTRAIN_DATA"])
CORPORA = ["text/novels/train.txt", "text/novels/valid.txt", "text/tinyshakespeare.txt", "text/tinystories_sample.txt",
           "text/wikitext-2/wiki.valid.tokens", "tokenizer/bpe_training/corpus.en", "tokenizer/fixtures/texts.inp"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
END = "<|endoftext|>"


class Numbers:
    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n


def made_words():
    """Words of one to four of 24 syllables, short numbers, line ends and runs of spaces."""
    syllables = "ba be bi bo da de di do ka ke ki ko ma me mi mo sa se si so tra gra \u00e9t \u4e2d".split()
    numbers, out = Numbers(3), []
    for _ in range(40000):
        kind = numbers.below(20)
        if kind == 0:
            out.append(str(numbers.below(1000)))
        elif kind == 1:
            out.append(".\n" if numbers.below(2) else "!\n\n\n")
        else:
            length = 1 + numbers.below(4)
            out.append("".join(syllables[min(numbers.below(24), numbers.below(24))] for _ in range(length)))
        out.append("   " if numbers.below(30) == 0 else " ")
    return "".join(out)


def made_ab():
    """Long words of two letters: many ties, runs of one letter, merges that overlap."""
    numbers, out = Numbers(5), []
    for _ in range(3000):
        for _ in range(1 + numbers.below(40)):
            out.append("ab"[numbers.below(3) // 2] * (1 + numbers.below(3)))
        out.append(" " if numbers.below(9) else "\n")
    return "".join(out)


def cases():
    for text in ("made:words", "made:ab"):
        for split in ("gpt2", "llama3"):
            for whole in (False, True):
                yield text, split, whole, 600, 0, [END]
        yield text, "gpt2", False, 100000, 0, []
        yield text, "gpt2", False, 100000, 5, [END, "<|pad|>"]
        yield text, "gpt2", True, 400, 2, ["ba", "aa", "\u0120ab", "a", END]
    for text in CORPORA:
        for split in ("gpt2", "llama3"):
            yield text, split, False, 32000, 0, [END]
            yield text, split, True, 5000, 2, [END]


def text_of(name):
    if name == "made:words":
        return made_words()
    return made_ab() if name == "made:ab" else (DATA / name).read_bytes().decode()


def train(text, split, whole, size, least, special):
    tokenizer = Tokenizer(models.BPE())
    if split == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=least, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    if whole:
        tokenizer.train_from_iterator([text], trainer)
    else:
        path = HERE / "text.tmp"
        path.write_bytes(text.encode())
        tokenizer.train([str(path)], trainer)
        path.unlink()
    tokenizer.decoder = decoders.ByteLevel()
    written = tokenizer.to_str(pretty=True)
    model = json.loads(written)["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]], written


def fnv(texts):
    h = 0xCBF29CE484222325
    for byte in b"".join(text.encode() + b"\0" for text in texts):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % h


def main():
    made = []
    for name, split, whole, size, least, special in cases():
        tokens, merges, written = train(text_of(name), split, whole, size, least, special)
        made.append({"text": name, "split": split, "whole": whole, "size": size, "least": least, "special": special,
                     "tokens": [len(tokens), fnv(tokens)], "merges": [len(merges), fnv(merges)],
                     "file": [len(written.encode()), fnv([written])]})
        print(made[-1], flush=True)
    result = {"made_by": "make_bpe_goldens.py, tokenizers " + tokenizers.__version__, "cases": made}
    (HERE / "bpe_goldens.json").write_text(json.dumps(result, indent=1) + "\n")


main()
