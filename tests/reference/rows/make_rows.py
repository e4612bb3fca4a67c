#!/usr/bin/env python3
"""make_rows.py: files of rows, and what Python's packages read in them, for tests/data/reference_rows_test.cpp.

    pip install datasets==5.2.0 transformers==5.24.0 zstandard==0.25.0
    python make_rows.py

`texts`: the documents of each file by datasets' json reader; of files with a byte order mark, which it does not take,
by json over the lines of utf-8-sig. Compressed ones are unpacked by gzip and zstandard.
`padded`: for each row of padded.jsonl the tokens that attention_mask keeps, and whether each is a target by the labels
of DataCollatorForSeq2Seq (rows with labels) or DataCollatorForLanguageModeling (rows without), which see all rows as a
batch padded to the left and to the right.
"""
import gzip
import io
import json
import pathlib
import tempfile

import datasets
import transformers
import zstandard
from tokenizers import Tokenizer, models

here = pathlib.Path(__file__).parent
TEXTS = ["first", "second {not} a \"row\"", "caf\u00e9\n\n{\"text\": 1}"]
ROWS = [json.dumps({"id": i, "text": t}) for i, t in enumerate(TEXTS)]
LF = "\n".join(ROWS).encode() + b"\n"
CRLF = b"\r\n \t\r\n" + "\r\n\r\n".join(ROWS).encode() + b"\r\n\r\n  \r\n\r\n"
SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00xyz"
half = len(LF) // 2
frames = zstandard.ZstdCompressor()
FILES = {
    "lines.ndjson": LF,
    "capitals.JSONL": LF,
    "lines.jsonlines": LF,
    "lines.json": LF,
    "lines.txt": LF,
    "no_ending": LF,
    "dotted.name-00001-of-00002": LF,
    "crlf.jsonl": CRLF,
    "crlf.txt": CRLF,
    "mark.jsonl": b"\xef\xbb\xbf" + LF,
    "mark_and_blank.ndjson": b"\xef\xbb\xbf\r\n" + LF,
    "no_line_end.ndjson": LF[:-1],
    "one_row": ROWS[0].encode(),
    "padded.Jsonl.GZ": gzip.compress(LF, mtime=0) + bytes(700),
    "members.jsonl.gz": gzip.compress(LF[:half], mtime=0) + bytes(5) + gzip.compress(LF[half:], mtime=0) + bytes(1),
    "packed_under_another_name": gzip.compress(CRLF, mtime=0) + bytes(512),
    "frames.ndjson.zst": SKIPPABLE + frames.compress(LF[:half]) + frames.compress(LF[half:]) + SKIPPABLE,
    "frames.data": frames.compress(LF),
}


def unpacked(name, data):
    if data[:2] == b"\x1f\x8b":
        return gzip.open(io.BytesIO(data)).read()
    if name.startswith("frames"):
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    return data


def texts(name, data):
    data = unpacked(name, data)
    if data.startswith(b"\xef\xbb\xbf"):
        return [json.loads(line)["text"] for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.jsonl"
        path.write_bytes(data)
        read = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=folder)
        return list(read["text"])


PAD = 0
PADDED = [
    {"input_ids": [10, 11, 12, 13, PAD, PAD, PAD, PAD], "attention_mask": [1, 1, 1, 1, 0, 0, 0, 0]},
    {"input_ids": [PAD, PAD, PAD, 21, 22, 23, 24, 25], "attention_mask": [0, 0, 0, 1, 1, 1, 1, 1]},
    {"attention_mask": [1, 1, 1, 1, 1, 1, 1, 1], "input_ids": [31, 32, 33, 34, 35, 36, 37, 38]},
    {"input_ids": [41, 42, PAD, PAD, PAD, PAD, PAD, PAD], "attention_mask": [1, 1, 0, 0, 0, 0, 0, 0],
     "labels": [-100, 42, -100, -100, -100, -100, -100, -100]},
    {"input_ids": [PAD, PAD, 51, 52, 53, 54, PAD, PAD], "attention_mask": [0, 0, 1, 1, 1, 1, 0, 0],
     "labels": [-100, -100, -100, -100, 53, 54, -100, -100]},
    {"input_ids": [61, 62, 63, PAD, PAD, 66, 67, PAD], "attention_mask": [1, 1, 1, 0, 0, 1, 1, 0],
     "labels": [-100, 62, 63, -100, -100, -100, 67, -100]},
]


def collated():
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": PAD, "a": 1}, unk_token="a")), pad_token="<pad>")
    found = []
    for side in ("right", "left"):
        tokenizer.padding_side = side
        of_side = []
        for row in PADDED:
            # beside a longer row, so that the collator pads, too
            longer = {"input_ids": [1] * 12, "attention_mask": [1] * 12}
            if "labels" in row:
                longer["labels"] = [1] * 12
                collate = transformers.DataCollatorForSeq2Seq(tokenizer, return_tensors="np")
            else:
                collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False, return_tensors="np")
            batch = collate([dict(row), longer])
            kept = batch["attention_mask"][0] == 1
            of_side.append({"ids": batch["input_ids"][0][kept].tolist(),
                            "targets": (batch["labels"][0][kept] != -100).astype(int).tolist()})
        found.append(of_side)
    assert found[0] == found[1], "the side that is padded changes nothing"
    return found[0]


def main():
    expected = {"versions": {m.__name__: m.__version__ for m in (datasets, transformers, zstandard)}, "texts": {}}
    for name, data in FILES.items():
        (here / name).write_bytes(data)
        expected["texts"][name] = texts(name, data)
        assert expected["texts"][name] == TEXTS[:len(expected["texts"][name])], name
    (here / "padded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PADDED))
    expected["padded"] = collated()
    (here / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
