"""The peers of benchmarks/tokenizer_bench: tokenizers, sentencepiece and tiktoken encode the same documents, one thread
each, in turns with it. Per tokenizer: the best MB/s of processor time of all passes, and how many times as fast llmtrain is.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0
    LLMTRAIN_DATA=.../data python tokenizers_encode.py build/host/benchmarks/tokenizer_bench TEXT [rounds]
"""

import os
import statistics
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import sentencepiece  # noqa: E402
import tiktoken  # noqa: E402
import tokenizers  # noqa: E402
from tiktoken.load import load_tiktoken_bpe  # noqa: E402

DATA = os.environ["LLMTRAIN_DATA"]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def documents_of(text):
    """Cut behind the first line end after each 64 KiB."""
    documents = []
    while text:
        end = text.find(b"\n", 1 << 16) + 1 or len(text)
        documents.append(text[:end].decode())
        text = text[end:]
    return documents


def peers():
    """name, tokenizer's path, name of the peer, its tokens of all documents."""
    def batches(path):
        tokenizer = tokenizers.Tokenizer.from_file(path)
        return lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    def pieces(path):
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        return lambda texts: sum(len(processor.encode(text)) for text in texts)

    def ranked(path):
        encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=load_tiktoken_bpe(path), special_tokens={})
        return lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)

    for name, package, make in (("gpt2/tokenizer.json", "tokenizers", batches),
                                ("llama2/tokenizer.json", "tokenizers", batches),
                                ("llama2/tokenizer.model", "sentencepiece", pieces),
                                ("llama3/tokenizer.model", "tiktoken", ranked)):
        path = os.path.join(DATA, "tokenizer", name)
        yield name, path, package, make(path)


def main():
    bench, path = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    with open(path, "rb") as file:
        text = file.read()
    documents = documents_of(text)
    for name, tokenizer, package, encode in peers():
        ours, theirs = [], []
        for _ in range(rounds):
            for line in subprocess.run([bench, tokenizer, path, "2"], check=True, capture_output=True,
                                       text=True).stdout.splitlines():
                seconds, tokens = line.split()
                ours.append(float(seconds))
            begin = time.process_time()
            count = encode(documents)
            theirs.append(time.process_time() - begin)
            if count != int(tokens):
                sys.exit(f"{name}: {package} finds {count} tokens, llmtrain {tokens}")
        mine, peer = statistics.median(ours), statistics.median(theirs)
        print(f"{name}: {len(text)} bytes, equal numbers of tokens; medians: {package} {len(text) / peer / 1e6:.1f} MB/s, "
              f"llmtrain {len(text) / mine / 1e6:.1f} MB/s, {peer / mine:.2f} times as fast", flush=True)


main()
