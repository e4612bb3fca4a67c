#!/usr/bin/env python3
"""quoted_lines.py ROOT: blocks of code in docs/design that quote the source have its very lines, and tables of virtual
functions are those of their header.

A block is a quotation if a comment stands above it:
<!-- quote: FILE "words of the first line" "words of the last line" -->
A table has every virtual function of a header, with its comment and the files that override it:
<!-- functions: HEADER -->
With LLMTRAIN_UPDATE_DOCS=1 both are written anew."""
import os
import pathlib
import re
import sys
import textwrap

QUOTE = re.compile(r'(<!-- quote: (\S+) "(.+?)" "(.+?)" -->\n```cpp\n)(.*?)(```\n)', re.S)

TABLE = re.compile(r'(<!-- functions: (\S+) -->\n)((?:\|.*\n)*)')


def lines_of(root, file, first, last):
    lines = (root / file).read_text().splitlines(keepends=True)
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    if begin is None:
        sys.exit(f"{file}: no line has the words {first!r}, which a page quotes")
    end = next((i for i in range(begin, len(lines)) if last in lines[i]), None)
    if end is None:
        sys.exit(f"{file}: no line behind {first!r} has the words {last!r}, which a page quotes")
    return textwrap.dedent("".join(lines[begin:end + 1]))


def functions_of(header):
    """(beginning of its declaration up to the type of its first argument, name, comment) of each virtual function."""
    comment = []
    for line in header.read_text().splitlines():
        text = line.strip()
        if text.startswith("/// "):
            comment.append(text[4:])
        elif (match := re.match(r"virtual .*?\b((\w+)\((?:\)|(?:const )?[\w:]+))", text)) and "~" not in text:
            if not comment:
                sys.exit(f"{header.name}: {match[2]} has no comment, which a page quotes")
            yield match[1], match[2], " ".join(comment)
            comment = []
        elif "constexpr" not in text:
            comment = []


def table_of(root, header):
    sources = {path.name: path.read_text() for path in sorted((root / header).parent.glob("*.[ch]pp"))}
    rows = ["| function | what it says | who overrides it |", "|---|---|---|"]
    for beginning, name, comment in functions_of(root / header):
        pattern = re.compile(rf"\b{re.escape(beginning)}[^;{{]*const override")
        files = ", ".join(f"`{file}`" for file, text in sources.items() if pattern.search(text))
        rows.append(f"| `{name}` | {comment} | {files} |")
    return "\n".join(rows) + "\n"


def quoted_anew(root, page):
    page = TABLE.sub(lambda m: m[1] + table_of(root, m[2]), page)
    return QUOTE.sub(lambda m: m[1] + lines_of(root, m[2], m[3], m[4]) + m[6], page)


def main():
    root = pathlib.Path(sys.argv[1])
    quotations = 0
    for path in sorted((root / "docs/design").glob("*.md")):
        page = path.read_text()
        current = quoted_anew(root, page)
        quotations += len(QUOTE.findall(page)) + len(TABLE.findall(page))
        if current == page:
            continue
        if os.environ.get("LLMTRAIN_UPDATE_DOCS") != "1":
            sys.exit(f"{path.relative_to(root)} does not quote the source as it is: run with LLMTRAIN_UPDATE_DOCS=1")
        path.write_text(current)
    controls = ('<!-- quote: src/core/deck/task.hpp "enum class Task " "enum class Task " -->\n```cpp\nenum class Task {};\n```\n',
                "<!-- functions: src/methods/method.hpp -->\n| function | what it says |\n")
    if quotations == 0 or any(quoted_anew(root, control) == control for control in controls):
        sys.exit("nothing was compared")
    print(f"{quotations} quotations have the lines of the source")


if __name__ == "__main__":
    main()
