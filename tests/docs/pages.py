"""The Markdown of README.md and docs/: pages, fenced blocks, anchors, inline code. Shared by check_pages.py and run_commands.py."""
import os
import re
import subprocess


class Block:
    """A fenced block: its language, the rest of its info string, its first line's number in the page, its lines."""

    def __init__(self, page, line, info, lines):
        words = info.split()
        self.page, self.line, self.lines = page, line, lines
        self.language = words[0] if words else ""
        self.arguments = words[1:]

    def where(self, offset=0):
        return f"{self.page}:{self.line + offset}"


class Page:
    def __init__(self, root, path):
        self.path = path
        with open(os.path.join(root, path), encoding="utf-8") as file:
            self.lines = file.read().split("\n")
        self.blocks, self.prose = [], []  # prose: (number, line) outside of fences
        fence = None
        for number, line in enumerate(self.lines, 1):
            match = re.match(r"^( *)(```+)(.*)$", line)
            if fence is None and match:
                fence = Block(path, number + 1, match.group(3).strip(), [])
                indent = len(match.group(1))
            elif fence is not None and match and not match.group(3):
                self.blocks.append(fence)
                fence = None
            elif fence is not None:
                fence.lines.append(line[indent:] if line[:indent].isspace() else line)
            else:
                self.prose.append((number, line))
        if fence is not None:
            raise SystemExit(f"{fence.where()}: the block is not closed")

    def anchors(self):
        """The ids that GitHub gives to the headings."""
        found, seen = set(), {}
        for _, line in self.prose:
            match = re.match(r"^#{1,6} (.*)$", line)
            if not match:
                continue
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            found.add(anchor if count == 0 else f"{anchor}-{count}")
        return found

    def links(self):
        """(line, target) of every link and picture."""
        for number, line in self.prose:
            for match in re.finditer(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                yield number, match.group(1)

    def code(self):
        """(line, text) of every piece of inline code, up to a generated part, which a test of its tables checks."""
        for number, line in self.prose:
            if line.startswith("<!-- Generated"):
                return
            for match in re.finditer(r"`([^`]+)`", line):
                yield number, match.group(1)


def pages(root):
    """README.md and every page below docs/ and benchmarks/results/."""
    paths = ["README.md"]
    for folder in ("docs", "benchmarks/results"):
        for here, _, names in sorted(os.walk(os.path.join(root, folder))):
            paths += [os.path.relpath(os.path.join(here, name), root) for name in sorted(names) if name.endswith(".md")]
    return [Page(root, path) for path in paths]


def commands(block):
    """(offset, command, output lines) of a block: of `sh` every line is a command, of `console` those after "$ "."""
    found, i = [], 0
    lines = block.lines
    while i < len(lines):
        line, start = lines[i], i
        i += 1
        if block.language == "console":
            if not line.startswith("$ "):
                if found:
                    found[-1][2].append(line)
                continue
            line = line[2:]
        while line.endswith("\\") and i < len(lines):
            line = line[:-1].rstrip() + " " + lines[i].strip()
            i += 1
        if line.strip() and not line.lstrip().startswith("#"):
            found.append((start, re.sub(r"\s+#.*$", "", line), []))
    return found


def deck_keys(llmtrain):
    """Every section.key that the program knows."""
    text = subprocess.run([llmtrain, "--help"], capture_output=True, text=True, check=True).stdout
    keys, section = set(), None
    for line in text.split("\n"):
        if match := re.match(r"^\[(\w+)\]", line):
            section = match.group(1)
        elif section and (match := re.match(r"^  (\w+)\s", line)):
            keys.add(f"{section}.{match.group(1)}")
    return keys


def check_command(root, command, keys):
    """What is wrong with a command that does not run here: syntax, and names of files, options, presets and deck keys."""
    wrong = []
    syntax = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
    if syntax.returncode != 0:
        wrong.append(syntax.stderr.strip())
    script = None
    sections = {key.split(".")[0] for key in keys}
    presets = open(os.path.join(root, "CMakePresets.json"), encoding="utf-8").read()
    words = re.split(r"\s+", command)
    for before, word in zip([""] + words, words):
        word = word.strip("'\"")
        if match := re.match(r"^(?:\./)?((jobs|inputs|tests|benchmarks|cmake|docs)/[\w./-]+)$", word):
            path = os.path.join(root, match.group(1))
            if not os.path.exists(path):
                wrong.append(f"{match.group(1)} does not exist")
            elif os.access(path, os.X_OK) and not os.path.isdir(path):
                script = path
        elif match := re.match(r"^build/\w+/benchmarks/(\w+)$", word):
            if not os.path.exists(os.path.join(root, "benchmarks", match.group(1) + ".cpp")):
                wrong.append(f"{word} is not a benchmark")
        elif match := re.match(r"^build/\w+/tests/test_(\w+)$", word):
            if not os.path.isdir(os.path.join(root, "tests", match.group(1))):
                wrong.append(f"{word} is not a test program")
        elif before == "--preset" and f'"name": "{word}"' not in presets:
            wrong.append(f"there is no preset {word}")
        elif match := re.match(r"^(\w+)\.(\w+)=", word):
            if match.group(1) in sections and f"{match.group(1)}.{match.group(2)}" not in keys:
                wrong.append(f"there is no deck key {match.group(1)}.{match.group(2)}")
        elif word.startswith("--") and script:
            option = word.split("=")[0]
            if option not in open(script, encoding="utf-8").read():
                wrong.append(f"{os.path.relpath(script, root)} has no option {option}")
    return wrong
