#!/usr/bin/env python3
"""Writes the seeds in corpus/: sound files, small, and files with what has hurt other readers. Inputs that fuzzing has
found are added to corpus/<target>/ by hand.

    python make_corpus.py build/host/llmtool
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def put(target, name, data):
    (HERE / target).mkdir(parents=True, exist_ok=True)
    (HERE / target / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def decks():
    put("deck", "sound.deck", "# a deck\n[data]\ntrain = a.txt, b.jsonl,\n  c*.txt\nvalidation_fraction = 0.25 ; a part\n"
        "tokenizer = bytes\npacking = none\ndocument_separator = blank_line\nadd_bos = true\ncache = /tmp/cache\n")
    put("deck", "repeated.deck", "[data]\ntrain = a\ntrain = b\n[data]\nnothing = 1\n[dat]\nx = 1\n")
    put("deck", "environment.deck", "[data]\ntrain = ${HOME}/${NO_SUCH_NAME}/${\n")
    put("deck", "bytes.deck", b"[data]\ntrain = \xff\xfe\0\r\n; \xf0\x9f\x98\x80\n=\n[\n]\n[]\n" + b"x" * 300 + b" = 1\n")


def jsons():
    put("json", "sound.json", json.dumps({"a": [1, -2.5e300, True, None, "\u00e9\n\\\""], "b": {"c": {}}, "d": []}))
    put("json", "deep.json", "[" * 70 + "]" * 70)
    put("json", "duplicate.json", '{"a": 1, "a": 2}')
    put("json", "behind.json", '{"a": 1} 2')
    put("json", "numbers.json", "[18446744073709551616, 1e999, -0, 0.1e-999, 123456789012345678901234567890]")
    put("json", "surrogates.json", '["\\ud83d\\ude00", "\\ud83d", "\\u0000"]')


def jsonl():
    put("jsonl", "sound.jsonl", '{"input_ids": [1, 2, 3]}\n\n{"input_ids": [4, 5], "labels": [-100, 5], "x": {"y": []}}\r\n'
        '{"labels": [], "input_ids": []}')
    put("jsonl", "hostile.jsonl", '{"input_ids": [99999999999, -1, 1.5]}\n{"input_ids": "a"}\n[1]\n{"input_ids": [[1]]}\n'
        + "[" * 100 + "\n" + '{"input_ids": [1], "labels": [1, 2]}\n{"input_ids": [1], "input_ids": [2]}\n')


def safetensors():
    def file(header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data
    put("safetensors", "sound.safetensors", file({
        "__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}}, bytes(26)))
    put("safetensors", "overlap.safetensors", file({
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)))
    put("safetensors", "overflow.safetensors", file({
        "a": {"dtype": "F64", "shape": [2**62, 4], "data_offsets": [0, 0]}}))
    put("safetensors", "length.safetensors", struct.pack("<Q", 2**63) + b"{}")
    put("safetensors", "empty.safetensors", file({}))


def weight_index():
    sound = {"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    put("weight_index", "sound.json", json.dumps(sound))
    put("weight_index", "paths.json", json.dumps({"weight_map": {"a": "../x", "b": "/etc/passwd", "c": ".", "d": ""}}))
    put("weight_index", "missing.json", json.dumps({"weight_map": {"b": "model-00001-of-00001.safetensors"}}))


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentencepiece():
    def piece(text, score, kind=1):
        return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
    pieces = piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("</s>", 0.0, 3) + b"".join(
        piece(text, -1.0 - i) for i, text in enumerate(["\u2581a", "a", "b", "ab", "\u2581"]))
    for kind, name in ((1, "unigram"), (2, "bpe")):
        put("sentencepiece", f"{name}.model", pieces + field(2, field(3, kind)) + field(3, field(3, 1)))
    put("sentencepiece", "charsmap.model", pieces + field(3, field(2, struct.pack("<II", 4, 0xFFFFFFFF) + b"x\0")))
    put("sentencepiece", "length.model", varint(1 << 3 | 2) + varint(2**63) + b"x")


def tiktoken():
    put("tiktoken", "few.tiktoken", "IQ== 0\nIg== 1\nIw== 2\n")
    put("tiktoken", "bad.tiktoken", "IQ== 0\nIg==1\n*** 2\nIw== 99999999999\n\n")


def tokenizer_json():
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3}, "merges": ["a b"]}
    put("tokenizer_json", "small.json", json.dumps({"model": model, "added_tokens": [
        {"id": 3, "content": "<s>", "single_word": True, "lstrip": True, "rstrip": True, "normalized": True,
         "special": True}], "normalizer": {"type": "NFC"}, "decoder": {"type": "BPEDecoder", "suffix": "b"}}))
    put("tokenizer_json", "ids.json", json.dumps({"model": {**model, "vocab": {"a": 0, "b": 4000000000}}}))
    put("tokenizer_json", "regex.json", json.dumps({"model": model, "pre_tokenizer": {
        "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}}))


def token_file(tool):
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("the cat sat on a mat\n\nand then\n")
        out = pathlib.Path(folder) / "tokens.h5"
        subprocess.run([tool, "prepare", "--input", text, "--tokenizer", "bytes", "--output", out], check=True, capture_output=True)
        data = out.read_bytes()
        put("token_file", "sound.h5", data)
        put("token_file", "half.h5", data[:len(data) // 2])


def main():
    decks(), jsons(), jsonl(), safetensors(), weight_index(), sentencepiece(), tiktoken(), tokenizer_json()
    token_file(sys.argv[1])


main()
