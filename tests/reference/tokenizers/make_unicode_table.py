"""Writes src/text/unicode/unicode_categories.inc: the general category of every code point, as the places where it changes.

Unicode 16.0 is what the tokenizers package (Oniguruma 6.9.10) and tiktoken (regex-syntax 0.8) split text by. The table is
part of the sources because a text must give the same tokens on every machine, whatever Unicode its libraries know.

    python make_unicode_table.py          # needs unicodedata2==16.0.0; with tokenizers installed it also compares
"""
import pathlib
import unicodedata2

OUT = pathlib.Path(__file__).resolve().parents[3] / "src/text/unicode/unicode_categories.inc"
LIMIT = 0x110000

def runs():
    last = None
    for c in range(LIMIT):
        category = unicodedata2.category(chr(c))
        if category != last:
            yield c, category
            last = category

def rows():
    """Runs as rows of the table: capitals and small letters that alternate, code point by code point, are one."""
    all_runs = list(runs()) + [(LIMIT, None)]
    i = 0
    while i + 1 < len(all_runs):
        begin, category = all_runs[i]
        end = i
        while all_runs[end][1] in ("Lu", "Ll") and all_runs[end + 1][0] == all_runs[end][0] + 1 and (
                all_runs[end + 1][1] != all_runs[end][1]) and all_runs[end + 1][1] in ("Lu", "Ll"):
            end += 1
        if category == "Lu" and end - i >= 3:
            yield "{0x%X, Lu, true}" % begin
            i = end + 1 if all_runs[end + 1][0] == all_runs[end][0] + 1 else end
        else:
            yield "{0x%X, %s}" % (begin, category)
            i += 1

def compare_with_tokenizers():
    try:
        from tokenizers import Regex, pre_tokenizers
    except ImportError:
        print("tokenizers is not installed: not compared")
        return
    points = [c for c in range(LIMIT) if not 0xD800 <= c < 0xE000]
    for major in "LMNPSZC":
        split = pre_tokenizers.Split(Regex(r"\p{%s}" % major), "removed", invert=True)
        theirs = set()
        for i in range(0, len(points), 4096):
            part = points[i:i + 4096]
            for _, (begin, end) in split.pre_tokenize_str("".join(map(chr, part))):
                theirs.update(part[begin:end])
        ours = {c for c in points if unicodedata2.category(chr(c))[0] == major}
        assert ours == theirs, (major, sorted(ours ^ theirs)[:10])
    print("equal to the classes of tokenizers")

def main():
    entries = list(rows())
    lines, line = [], ""
    for entry in entries:
        if len(line) + len(entry) + 2 > 120:
            lines.append(line.rstrip())
            line = ""
        line += entry + ", "
    lines.append(line.rstrip())
    head = ["// Unicode %s: first code point of every run of one general category." % unicodedata2.unidata_version,
            "// Written by tests/reference/tokenizers/make_unicode_table.py."]
    OUT.write_text("\n".join(head + lines) + "\n")
    print(OUT, len(entries), "runs", len(lines), "lines")
    compare_with_tokenizers()

main()
