"""The peers of benchmarks/tokenizer_bench: tokenizers, sentencepiece and tiktoken encode the same documents in turn with
it (A B C A B C ...), each in a process of its own on as many threads; the numbers of tokens must be equal. Per tokenizer:
medians of all passes by the clock, peak memory of the process, and how many times as fast llmtrain is, by the clock and
by processor time.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0
    LLMTRAIN_DATA=.../data python tokenizers_encode.py build/host/benchmarks/tokenizer_bench TEXT [--threads 1]
        [--rounds 5] [--passes 3] [--only gpt2/tokenizer.json]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = {
    "gpt2/tokenizer.json": ["tokenizers", "tiktoken"],
    "llama2/tokenizer.json": ["tokenizers"],
    "llama2/tokenizer.model": ["sentencepiece"],
    "llama3/tokenizer.model": ["tiktoken"],
}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def documents_of(path):
    """Cut behind the first line end after each 64 KiB."""
    documents = []
    with open(path, "rb") as file:
        while document := file.read(1 << 16) + file.readline():
            documents.append(document.decode())
    return documents


def tiktoken_of(path):
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe
    from tiktoken_ext.openai_public import r50k_pat_str
    if path.endswith(".model"):
        return tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=load_tiktoken_bpe(path), special_tokens={})
    files = (os.path.join(os.path.dirname(path), name) for name in ("merges.txt", "vocab.json"))
    ranks = data_gym_to_mergeable_bpe_ranks(*files, None, None)
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})


def encoder(package, path, threads):
    """Number of the tokens of some documents."""
    if package == "tokenizers":
        import tokenizers
        tokenizer = tokenizers.Tokenizer.from_file(path)
        return lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    if package == "sentencepiece":
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        return lambda texts: sum(map(len, processor.encode(texts, num_threads=threads)))
    encoding = tiktoken_of(path)
    if threads == 1:
        return lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)
    return lambda texts: sum(map(len, encoding.encode_ordinary_batch(texts, num_threads=threads)))


def encode(package, path, text, passes, threads):
    """What tokenizer_bench prints: seconds, seconds of processor time, tokens of each pass."""
    count, documents = encoder(package, path, threads), documents_of(text)
    some = 16 * threads  # documents per batch: results of a whole text would use most of the memory
    for _ in range(passes):
        begin, worked = time.perf_counter(), time.process_time()
        tokens = sum(count(documents[i:i + some]) for i in range(0, len(documents), some))
        print(time.perf_counter() - begin, time.process_time() - worked, tokens)


def run(command, threads):
    """Lines of numbers, and the peak in bytes, which is this process's at least: it loads none of the packages."""
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TIKTOKEN_CACHE_DIR="",
                       TOKENIZERS_PARALLELISM="true" if threads > 1 else "false")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environment, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"failed: {' '.join(command)}")
        output.seek(0)
        return [tuple(map(float, line.split())) for line in output], usage.ru_maxrss * 1024


def compare(args, name):
    path = os.path.join(os.environ["LLMTRAIN_DATA"], "tokenizer", name)
    numbers = [path, args.text, str(args.passes), str(args.threads)]
    ways = {"llmtrain": [args.program] + numbers}
    for package in PEERS[name]:
        ways[package] = [sys.executable, __file__, "--peer", package] + numbers
    passes, peaks = {way: [] for way in ways}, {way: [] for way in ways}
    for _ in range(args.rounds):
        for way, command in ways.items():
            lines, peak = run(command, args.threads)
            passes[way] += lines
            peaks[way].append(peak)
            if lines[0][2] != passes["llmtrain"][0][2]:
                sys.exit(f"{name}: {way} finds {lines[0][2]:.0f} tokens, llmtrain {passes['llmtrain'][0][2]:.0f}")
    print(f"{name}, {args.threads} thread(s): {passes['llmtrain'][0][2]:.0f} tokens by all")
    clock, processor = ({way: statistics.median(line[i] for line in passes[way]) for way in ways} for i in (0, 1))
    peak = {way: statistics.median(peaks[way]) for way in ways}
    for way in ways:
        beside = f"; llmtrain is {clock[way] / clock['llmtrain']:.2f} times as fast, " \
                 f"{processor[way] / processor['llmtrain']:.2f} by processor time" if way != "llmtrain" else ""
        print(f"  {way:<14} {os.path.getsize(args.text) / clock[way] / 1e6:6.1f} MB/s, {peak[way] / 2**20:5.0f} MiB{beside}",
              flush=True)


def main():
    if sys.argv[1:2] == ["--peer"]:
        package, path, text, passes, threads = sys.argv[2:]
        encode(package, path, text, int(passes), int(threads))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--only", choices=PEERS)
    args = parser.parse_args()
    for name in [args.only] if args.only else PEERS:
        compare(args, name)


main()
