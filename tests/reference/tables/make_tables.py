#!/usr/bin/env python3
"""make_tables.py: tables in the forms that people keep them in, and the same rows as JSON lines, for
tests/data/table_rows_test.cpp and tests/data/table_file_test.cpp.

    pip install pyarrow==26.0.1
    python make_tables.py

NAME.jsonl has the rows of NAME.* and NAME_*.*: what pyarrow's to_pylist() (or Python's csv) reads in the files that were
written, so that nothing of llmtrain is in them. Times and decimal numbers are texts there, as Arrow casts them; fields
of structs that are null are left out.
"""
import csv
import datetime
import decimal
import gzip
import io
import json
import pathlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent


def write_parquet(name, table, **options):
    pq.write_table(table, here / f"{name}.parquet", **options)


def write_arrow(name, table, batch, stream=False, **options):
    make = ipc.new_stream if stream else ipc.new_file
    with make(here / f"{name}.arrow", table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)


def write_csv(path, rows, **options):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), **options)
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def without_nulls(value, top=True):
    if isinstance(value, dict):
        return {k: without_nulls(v, False) for k, v in value.items() if top or v is not None}
    return [without_nulls(v, False) for v in value] if isinstance(value, list) else value


def write_lines(name, rows):
    text = "".join(json.dumps(without_nulls(row), ensure_ascii=False) + "\n" for row in rows)
    (here / f"{name}.jsonl").write_text(text, encoding="utf-8")


# Texts: quotes, line ends, delimiters, an empty one and a null, which are skipped, repeated ones (a dictionary page).
TEXTS = ["first", 'a "quoted" one, with a comma\tand a tab', "two\nlines\r\nand an end\n", "caf\u00e9 \u6771\u4eac \U0001f642", "", None,
         "first", "back\\slash \u0001 control", "first", "  spaces around  ", "x" * 3000, "last"]
text = pa.table({
    "id": pa.array(range(len(TEXTS)), pa.int64()),
    "text": pa.array(TEXTS, pa.string()),
    "unused": pa.array([{"deep": [i, None], "none": None} for i in range(len(TEXTS))]),
})
write_lines("text", text.to_pylist())
write_parquet("text_snappy", text, compression="snappy", row_group_size=5)
write_parquet("text_zstd", text, compression="zstd", row_group_size=4, data_page_version="2.0", data_page_size=64)
write_parquet("text_gzip", text.set_column(1, "text", text["text"].cast(pa.large_string())), compression="gzip",
              use_dictionary=False, row_group_size=1)
write_parquet("text_plain", text, compression="none", use_dictionary=["text"], write_statistics=False, store_schema=False,
              write_page_checksum=True)
write_parquet("text_dictionary", text.set_column(1, "text", text["text"].dictionary_encode()), compression="brotli")
write_arrow("text_file", text, 5)
write_arrow("text_stream", text, 5, stream=True)
write_arrow("text_view", text.set_column(1, "text", text["text"].cast(pa.string_view())), 7)
write_arrow("text_dictionary", text.set_column(1, "text", text["text"].dictionary_encode()), 5)
feather.write_feather(text, here / "text_lz4.feather", compression="lz4", chunksize=5)
feather.write_feather(text, here / "text_zstd.feather", compression="zstd")

# CSV has no null and no structs; fields are texts.
FIELDS = [{"id": str(i), "text": t or ""} for i, t in enumerate(TEXTS)]
write_lines("fields", FIELDS)
write_csv(here / "fields_commas.csv", FIELDS)
write_csv(here / "fields_quoted.csv", FIELDS, quoting=csv.QUOTE_ALL, lineterminator="\n")
write_csv(here / "fields_tabs.tsv", FIELDS, delimiter="\t")
write_csv(here / "fields_packed.csv.gz", FIELDS)
marked = (here / "fields_commas.csv").read_bytes()
(here / "fields_marked.csv").write_bytes(b"\xef\xbb\xbf" + marked + b"\r\n\r\n")

# Conversations: nested, with nulls where messages of another kind have a key; flags of turns.
def message(role, content, **more):
    return {"role": role, "content": content, "name": more.get("name"), "weight": more.get("weight"),
            "tool_calls": more.get("tool_calls")}

CALL = [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris", "days": None}}}]
CHATS = [
    [message("system", "Be brief."), message("user", "Hi?"), message("assistant", "Hello.")],
    [message("user", "Weather?"), message("assistant", None, tool_calls=CALL), message("tool", "18", name="weather"),
     message("assistant", "Mild.")],
    [message("user", "One?"), message("assistant", "1", weight=0), message("user", "Two?"),
     message("assistant", "2", weight=1)],
]
chats = pa.table({"messages": pa.array(CHATS), "source": pa.array(["a", None, "b"]),
                  "photo": pa.array([b"\xff\xd8\xff", None, b"\x00"])})
write_lines("chats", chats.drop_columns(["photo"]).to_pylist())
write_parquet("chats", chats, row_group_size=2, compression="zstd")
write_arrow("chats", chats, 2)
write_arrow("chats_stream", chats, 1, stream=True, compression="lz4")

# Pairs with a margin, and answers with a label, whose CSV says which fields are numbers by their column alone.
PAIRS = [{"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3", "margin": 0.5},
         {"prompt": "2, 2", "chosen": " yes\n", "rejected": ' "no"', "margin": 2.0},
         {"prompt": "3", "chosen": " 33", "rejected": " 4", "margin": 1e-3}]
write_lines("pairs", PAIRS)
write_parquet("pairs", pa.Table.from_pylist(PAIRS), row_group_size=2)
write_csv(here / "pairs.csv", PAIRS)
LABELS = [{"prompt": "1", "completion": "2", "label": True}, {"prompt": "3", "completion": "4", "label": False}]
write_lines("labels", LABELS)
write_parquet("labels", pa.Table.from_pylist(LABELS))
write_csv(here / "labels.tsv", LABELS, delimiter="\t")

# Token ids with masks, in lists of several kinds.
IDS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
LABELS_OF_IDS = [[-100, 6, 7, 8], [9, 10], [-100, -100, 13]]
MASKS = [[1, 1, 1, 0], [1, 1], [1, 1, 1]]
ids = pa.table({"input_ids": pa.array(IDS, pa.list_(pa.int32())), "labels": pa.array(LABELS_OF_IDS, pa.large_list(pa.int64())),
                "attention_mask": pa.array(MASKS, pa.list_(pa.int8())), "note": pa.array(["x", "y", "z"])})
write_lines("ids", ids.to_pylist())
write_parquet("ids", ids, row_group_size=2)
write_arrow("ids", ids, 2)

# Every type.
moment = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000)
types = pa.table({
    "i8": pa.array([-128, None, 127], pa.int8()), "u16": pa.array([0, 65535, None], pa.uint16()),
    "u64": pa.array([2**64 - 1, 0, 1], pa.uint64()), "i64": pa.array([-(2**63), 2**63 - 1, 0], pa.int64()),
    "f16": pa.array([1.5, None, -0.25], pa.float16()), "f32": pa.array([0.1, 1e-30, None], pa.float32()),
    "f64": pa.array([0.1, 3.0, 1e300], pa.float64()), "flag": pa.array([True, False, None]),
    "nothing": pa.nulls(3), "bytes": pa.array([b"abc", b"", None], pa.binary()),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)), "large": pa.array(["a", None, "\u00e9"], pa.large_string()),
    "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
    "pair": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "nested": pa.array([[[{"a": 1, "b": None}], []], [None], [[{"a": None, "b": "x"}, {"a": 2, "b": "y"}]]]),
    "coded": pa.array(["x", None, "x"]).dictionary_encode(),
    "map": pa.array([[("k", 1), ("l", 2)], [], None], pa.map_(pa.string(), pa.int64())),
    "date": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1969, 12, 31)], pa.date32()),
    "time": pa.array([moment, None, moment.replace(year=1996)], pa.timestamp("ms")),
    "price": pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.01")], pa.decimal128(9, 2)),
})
rows = types.to_pylist()
for name in ("date", "time", "price"):
    for row, value in zip(rows, pc.cast(types[name], pa.string()).to_pylist()):
        row[name] = value
for row in rows:
    row["map"] = None if row["map"] is None else dict(row["map"])
    for name in ("bytes", "fixed"):
        row[name] = None if row[name] is None else row[name].decode()
write_lines("types", rows)
write_parquet("types", types, row_group_size=2)
write_arrow("types", types, 2)

# Hostile ones: two columns of a name, no row, a text that is none, and, to be broken by the tests, plain pages.
write_parquet("hostile_twice", pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]))
write_arrow("hostile_twice", pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), 1)
write_parquet("hostile_empty", text.slice(0, 0))
write_arrow("hostile_empty", text.slice(0, 0), 1)
latin = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\3\0\0\0\7\0\0\0"), pa.py_buffer(b"abccaf\xe9")])
write_parquet("hostile_latin", pa.table({"text": latin}), row_group_size=1)
