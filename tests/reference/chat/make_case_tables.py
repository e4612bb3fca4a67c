"""Writes src/text/chat/jinja/case_tables.inc: what Python's str does with characters beside its general rules.

    python make_case_tables.py

Versions: Python 3.11 (Unicode 14).
"""
import pathlib
import unicodedata

TARGET = pathlib.Path(__file__).parents[3] / "src/text/chat/jinja/case_tables.inc"
ALL = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def ranges(holds):
    found = []
    for code in map(ord, filter(holds, ALL)):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return [f"{{0x{first:X}, 0x{last:X}}}" for first, last in found]


def literal(text):
    """A literal whose bytes outside ASCII are escapes; no escape goes on into the character after it."""
    parts = "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02X}\0" for byte in text.encode())
    return '"' + parts.replace("\0", '""').replace('""\\x', "\\x").removesuffix('""') + '"'


def cases(function, rule):
    return [f"{{0x{ord(c):X}, {literal(function(c))}}}" for c in ALL if function(c) != rule(c)]


def main():
    capitals = {}  # of several capitals the first one counts
    for c in reversed(ALL):
        if c.lower() != c and len(c.lower()) == 1:
            capitals[c.lower()] = c
    lower = lambda text: "".join(c.lower() for c in text)
    tables = {
        ("IrregularCase", "irregular_upper_cases", "Capitals that are not the letter that has this one as lower case."):
            cases(str.upper, lambda c: capitals.get(c, c)),
        ("IrregularCase", "irregular_title_cases", "Initial capitals that are not the first capital with the others in lower case."):
            cases(str.title, lambda c: c.upper()[0] + lower(c.upper()[1:])),
        ("CharacterRange", "more_lower", "Lower case outside of the category Ll."):
            ranges(lambda c: c.islower() and unicodedata.category(c) != "Ll"),
        ("CharacterRange", "more_upper", "Upper case outside of the category Lu."):
            ranges(lambda c: c.isupper() and unicodedata.category(c) != "Lu"),
    }
    with open(TARGET, "w", encoding="ascii") as file:
        file.write("// Unicode 14 as in Python 3.11. Written by tests/reference/chat/make_case_tables.py.\n")
        for (kind, name, what), entries in tables.items():
            file.write(f"/// {what}\nconstexpr {kind} {name}[] = {{\n")
            line = ""
            for entry in entries:
                if len(line) + len(entry) > 116:
                    file.write(line.rstrip() + "\n")
                    line = ""
                line += entry + ", "
            file.write(line.rstrip() + "\n};\n")


if __name__ == "__main__":
    main()
