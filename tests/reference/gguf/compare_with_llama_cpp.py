"""Compares GGUF files with llama.cpp: ids of prompts, and the greedy tokens that follow them, equal llmtrain's.

    pip install llama-cpp-python        # built from its source
    LLMTRAIN_DATA=... python compare_with_llama_cpp.py BUILD FOLDER [CASE...]

BUILD has llmtrain and llmtool; FOLDER keeps the models, which llmtrain trains there for a minute each: one of every
family, with the tokenizers that families have, and variants of rope. llama.cpp rounds activations to the type of the
weights (and GELU's table to fp16), so that a token counts only while the best logit of llmtrain's, which computes in
fp32 with the same weights, is ahead by more than the bound of the type. Prints a line per file, and fails if a token or
an id differs.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

BUILD, FOLDER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DATA = pathlib.Path(os.environ["LLMTRAIN_DATA"])
NEW_TOKENS = 24
BOUND = {"fp32": 2e-3, "fp16": 0.02, "bf16": 0.15, "q8_0": 0.5}  # logits

QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
              r"\s+(?!\S)|\s+")
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"|\p{N}| ?", r"|\p{N}{1,3}| ?")
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

PROMPTS = ["The", "Hello, world!", "In the beginning", "He said: \"I don't know\", and they'll see.", "A  B   C",
           "a\nb\n\n\nc", "\tTabs\tand  more   spaces", "Gr\u00fc\u00dfe aus K\u00f6ln, na\u00efve fa\u00e7ade", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8", "\u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438",
           "emoji \U0001f680\U0001f999 here", "12345 67 8.9e-10", "for (int i = 0; i < n; ++i) { x[i] += y; }", "WE'VE DONE'LL",
           "The quick brown fox jumps over the lazy dog", "e = mc^2 + \\alpha", "trailing space ", "...---...!!!???",
           "\u043a\u043e\u0442 \u0438 \u72d7 and dog", "one\r\ntwo"]


def added(token, id):
    return {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def shrunk(name, merges=1500):
    """A published tokenizer.json with its first merges, so that models of its vocabulary train fast."""
    document = json.loads((DATA / "tokenizer" / name / "tokenizer.json").read_text())
    model = document["model"]
    pair = lambda merge: merge if isinstance(merge, list) else merge.split(" ")
    made = {"".join(pair(merge)) for merge in model["merges"]}
    model["merges"] = model["merges"][:merges]
    kept = {"".join(pair(merge)) for merge in model["merges"]}
    tokens = sorted((t for t in model["vocab"] if t in kept or t not in made), key=model["vocab"].get)
    model["vocab"] = {token: id for id, token in enumerate(tokens)}
    model["merges"] = [merge for merge in model["merges"] if all(part in model["vocab"] for part in pair(merge))]
    for token in document["added_tokens"]:
        token["id"] = model["vocab"][token["content"]]
    return document


def byte_level(folder, split, ignore_merges, special=(), config=None):
    """GPT-2's vocabulary with another split into words."""
    document = shrunk("gpt2")
    size = len(document["model"]["vocab"])
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}]}
    document["model"]["ignore_merges"] = ignore_merges
    document["added_tokens"] += [added(token, size + i) for i, token in enumerate(special)]
    write(folder, document, dict(eos_token="<|endoftext|>", tokenizer_class="PreTrainedTokenizerFast", **(config or {})))


def sentencepiece(folder, prefix, special=(), config=None):
    """Llama 2's vocabulary; without `prefix` as Gemma has it."""
    document = shrunk("llama2")
    size = len(document["model"]["vocab"])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    if not prefix:
        document["normalizer"] = replace
    document["added_tokens"] += [added(token, size + i) for i, token in enumerate(special)]
    write(folder, document, dict(bos_token="<s>", eos_token="</s>", tokenizer_class="PreTrainedTokenizerFast",
                                 **(config or {})))


def write(folder, document, config):
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def gpt2(folder):
    write(folder, shrunk("gpt2"), {"tokenizer_class": "GPT2Tokenizer"})


def gpt2_files(folder):
    folder.mkdir(parents=True)
    model = shrunk("gpt2")["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(line + "\n" for line in lines))


def llama2(folder):
    write(folder, shrunk("llama2"), json.loads((DATA / "tokenizer/llama2/tokenizer_config.json").read_text()))


def llama2_model(folder):
    folder.mkdir(parents=True)
    shutil.copy(DATA / "tokenizer/llama2/tokenizer.model", folder)


# name: (family, tokenizer, further keys of the deck)
CASES = {
    "gpt2": ("gpt2", gpt2, []),
    "gpt2_files": ("gpt2", gpt2_files, []),
    "char": ("gpt2", "char", []),
    "bytes": ("llama", "bytes", ["model.n_kv_heads=2"]),
    "llama": ("llama", llama2, ["model.n_kv_heads=2"]),
    "llama3": ("llama", lambda f: byte_level(f, LLAMA3_SPLIT, True, ["<|start_header_id|>"]),
               ["model.n_kv_heads=2", f"model.rope_scaling=llama3, factor 4, original_max_position_embeddings 32"]),
    "llama_linear": ("llama", llama2, ["model.rope_scaling=linear, factor 2"]),
    "llama_yarn": ("llama", llama2, ["model.rope_scaling=yarn, factor 4, original_max_position_embeddings 32"]),
    "mistral": ("mistral", llama2_model, ["model.n_kv_heads=2", "model.sliding_window=0"]),
    "qwen2": ("qwen2", lambda f: byte_level(f, QWEN_SPLIT, False, ["<|im_start|>", "<|im_end|>"],
                                            {"chat_template": CHATML}), ["model.n_kv_heads=2"]),
    "qwen3": ("qwen3", lambda f: byte_level(f, QWEN_SPLIT, False, ["<|im_start|>", "<|im_end|>"],
                                            {"chat_template": CHATML}), ["model.n_kv_heads=2", "model.head_dim=24"]),
    "gemma2": ("gemma2", lambda f: sentencepiece(f, False), ["model.n_kv_heads=2", "model.sliding_window=12"]),
    "phi3": ("phi3", lambda f: sentencepiece(f, True, ["<|user|>", "<|end|>"]), ["model.n_kv_heads=2"]),
}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(name):
    """Trains a model of the case; returns its Hugging Face folder."""
    family, tokenizer, keys = CASES[name]
    runs, output = FOLDER / "runs", FOLDER / "runs" / name / "export"
    if output.exists():
        return output
    if callable(tokenizer):
        shutil.rmtree(FOLDER / "tokenizers" / name, ignore_errors=True)
        tokenizer(FOLDER / "tokenizers" / name)
        tokenizer = FOLDER / "tokenizers" / name
    deck = FOLDER / "deck.ini"
    deck.write_text(f"""[run]
max_steps = 40
output = {runs}
[model]
d_model = 64
n_layers = 2
n_heads = 4
d_ff = 96
max_seq_len = 128
initializer_std = 0.06
[data]
train = {DATA}/tokenizer/bpe_training/corpus.en
validation_fraction = 0
cache = {FOLDER}/cache
[batch]
sequence_length = 64
micro = 4
[schedule]
learning_rate = 4e-3
[precision]
compute = fp32
[checkpoint]
export = last
""")
    run(BUILD / "llmtrain", deck, f"run.name={name}", f"model.family={family}", f"data.tokenizer={tokenizer}", *keys)
    return output


def merged():
    """The Llama with an adapter of it, trained and merged."""
    base, output = train("llama"), FOLDER / "runs" / "merged" / "model"
    if not output.exists():
        run(BUILD / "llmtrain", FOLDER / "deck.ini", "run.name=merged", f"model.path={base}", "run.finetuning=lora",
            "lora.r=4", f"data.tokenizer={base}", "checkpoint.export=none")
        run(BUILD / "llmtool", "merge", "--model", base, "--adapter", FOLDER / "runs/merged/adapter", "--output", output)
    return output


class Ours:
    def __init__(self, folder):
        self.folder = folder

    def encode(self, text):
        path = FOLDER / "prompt.txt"
        path.write_bytes(text.encode())
        return [int(i) for i in run(BUILD / "llmtool", "tokenizer", "encode", "--tokenizer", self.folder, "--input",
                                    path, "--ids", "--special-tokens").split()]

    def greedy(self, ids):
        return [int(i) for i in run(BUILD / "llmtool", "generate", "--model", self.folder, "--prompt-ids",
                                    ",".join(map(str, ids)), "--greedy", "--ids", "--ignore-eos", "--max-new-tokens",
                                    NEW_TOKENS).replace(",", " ").split()]


class Theirs:
    """llama.cpp with an fp32 cache, one thread."""

    def __init__(self, path):
        import llama_cpp
        self.llama = llama_cpp.Llama(str(path), n_ctx=0, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True,
                                     type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
        self.metadata = self.llama.metadata

    def encode(self, text):
        return self.llama.tokenize(text.encode(), add_bos=self.metadata["tokenizer.ggml.add_bos_token"] == "true",
                                   special=False)

    def greedy(self, ids):
        """Returns the tokens, and how far each is ahead of the next best."""
        tokens, margins = [], []
        self.llama.reset()
        self.llama.eval(ids)
        for _ in range(NEW_TOKENS):
            logits = np.asarray(self.llama.scores[self.llama.n_tokens - 1])
            best = np.argsort(logits)[-2:]
            tokens.append(int(best[1]))
            margins.append(float(logits[best[1]] - logits[best[0]]))
            self.llama.eval([tokens[-1]])
        return tokens, margins


def compare(name, folder, dtype):
    path = FOLDER / f"{name}-{dtype}.gguf"
    run(BUILD / "llmtool", "export", folder, "--format", "gguf", "--dtype", dtype, "--output", path, "--force")
    rounded = folder
    if dtype in ("fp16", "bf16"):
        rounded = FOLDER / "rounded"
        run(BUILD / "llmtool", "export", folder, "--dtype", dtype, "--output", rounded, "--force")
    ours, theirs = Ours(rounded), Theirs(path)
    ids, whole, compared, wrong = 0, 0, 0, []
    prompts = PROMPTS
    if name == "char":  # it knows the characters of its data
        lines = (DATA / "tokenizer/bpe_training/corpus.en").read_text().splitlines()
        prompts = [line[:30] for line in lines if line][:len(PROMPTS)]
    for prompt in prompts:
        expected = ours.encode(prompt)
        if theirs.encode(prompt) != expected:
            wrong.append((prompt, expected, theirs.encode(prompt)))
            continue
        ids += 1
        mine, (found, margins) = ours.greedy(expected), theirs.greedy(expected)
        same = next((i for i in range(NEW_TOKENS) if mine[i] != found[i]), NEW_TOKENS)
        compared += same
        whole += same == NEW_TOKENS
        if same < NEW_TOKENS and margins[same] > BOUND[dtype]:
            wrong.append((prompt, same, mine, found, margins[same]))
    print(f"{name:13s} {dtype}: ids of {ids} of {len(prompts)} prompts are equal, all {NEW_TOKENS} tokens of {whole}, "
          f"{compared} of {ids * NEW_TOKENS} tokens; {len(wrong)} wrong", flush=True)
    for line in wrong:
        print("   ", *line)
    path.unlink()
    return not wrong


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = sys.argv[3:] or [*CASES, "merged"]
    right = True
    for name in names:
        folder = merged() if name == "merged" else train(name)
        for dtype in BOUND:
            right = compare(name, folder, dtype) and right
    sys.exit(not right)


if __name__ == "__main__":
    main()
