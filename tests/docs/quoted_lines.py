#!/usr/bin/env python3
"""quoted_lines.py ROOT: blocks of code in docs/design that quote the source have its very lines.

A block is a quotation if a comment stands above it:
<!-- quote: FILE "words of the first line" "words of the last line" -->
With LLMTRAIN_UPDATE_DOCS=1 the blocks are written anew."""
import os
import pathlib
import re
import sys
import textwrap

QUOTE = re.compile(r'(<!-- quote: (\S+) "(.+?)" "(.+?)" -->\n```cpp\n)(.*?)(```\n)', re.S)


def lines_of(root, file, first, last):
    lines = (root / file).read_text().splitlines(keepends=True)
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    if begin is None:
        sys.exit(f"{file}: no line has the words {first!r}, which a page quotes")
    end = next((i for i in range(begin, len(lines)) if last in lines[i]), None)
    if end is None:
        sys.exit(f"{file}: no line behind {first!r} has the words {last!r}, which a page quotes")
    return textwrap.dedent("".join(lines[begin:end + 1]))


def quoted_anew(root, page):
    return QUOTE.sub(lambda m: m[1] + lines_of(root, m[2], m[3], m[4]) + m[6], page)


def main():
    root = pathlib.Path(sys.argv[1])
    quotations = 0
    for path in sorted((root / "docs/design").glob("*.md")):
        page = path.read_text()
        current = quoted_anew(root, page)
        quotations += len(QUOTE.findall(page))
        if current == page:
            continue
        if os.environ.get("LLMTRAIN_UPDATE_DOCS") != "1":
            sys.exit(f"{path.relative_to(root)} does not quote the source as it is: run with LLMTRAIN_UPDATE_DOCS=1")
        path.write_text(current)
    control = '<!-- quote: src/core/deck/task.hpp "enum class Task " "enum class Task " -->\n```cpp\nenum class Task {};\n```\n'
    if quotations == 0 or quoted_anew(root, control) == control:
        sys.exit("nothing was compared")
    print(f"{quotations} quotations have the lines of the source")


if __name__ == "__main__":
    main()
