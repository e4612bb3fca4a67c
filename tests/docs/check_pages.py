"""check_pages.py ROOT LLMTRAIN: what README.md and docs/ say exists. Links lead to files and anchors; files, tests,
benchmarks and deck keys in inline code are there; decks name keys that exist; README keeps its size; pages begin with
commands, have short paragraphs, and are linked."""
import glob
import os
import re
import sys

from pages import Page, commands, deck_keys, pages

README_LIMITS = {"lines": 150, "words": 900, "words of a paragraph": 60}
PARAGRAPH_LIMIT = 110  # words
WITHOUT_COMMAND = ("docs/deck.md", "docs/glossary.md", "docs/design/", "docs/settings/")
FOLDERS = ("src/", "kernels/", "tests/", "benchmarks/", "jobs/", "inputs/", "cmake/", "docs/", "modules/", "spack/", "spack_repo/")


def is_table(line):
    return line.startswith(("|", "#", "---|")) or " | " in line


def paragraphs(page):
    """(line, text) of each paragraph of prose and each item of a list; tables and headings are not among them."""
    start, words = 0, []
    for number, line in page.prose + [(0, "")]:
        if not line.strip() or is_table(line) or re.match(r"^\s*([-*]|\d+\.) ", line):
            if words:
                yield start, " ".join(words)
            start, words = number, []
            if not line.strip() or is_table(line):
                continue
        start = start if words else number
        words.append(line.strip())


def prose_of(text):
    """The words that a reader sees."""
    return [word for word in re.sub(r"\]\([^)]*\)|[`*\[\]]", " ", text).split() if re.search(r"\w", word)]


class Check:
    def __init__(self, root, llmtrain):
        self.root, self.wrong = root, []
        self.pages = {page.path: page for page in pages(root)}
        self.keys = deck_keys(llmtrain)
        self.sections = {key.split(".")[0] for key in self.keys}
        self.suites, self.listed = set(), ""
        for path in glob.glob(os.path.join(root, "tests/**/*"), recursive=True):
            if path.endswith("_test.cpp"):
                text = open(path, encoding="utf-8").read()
                self.suites |= set(re.findall(r"^TEST(?:_[FP])?\((\w+),", text, re.M))
            elif path.endswith("CMakeLists.txt"):
                self.listed += open(path, encoding="utf-8").read()

    def blame(self, page, line, text):
        self.wrong.append(f"{page.path}:{line}: {text}")

    def check_links(self, page):
        for line, target in page.links():
            if re.match(r"^[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            at = os.path.normpath(os.path.join(os.path.dirname(page.path), path)) if path else page.path
            if not os.path.exists(os.path.join(self.root, at)):
                self.blame(page, line, f"the link to {target} leads nowhere")
            elif anchor:
                if at not in self.pages:
                    self.pages[at] = Page(self.root, at)
                if anchor not in self.pages[at].anchors():
                    self.blame(page, line, f"{at} has no heading #{anchor}")

    def check_code(self, page):
        for line, text in page.code():
            name = text.split(" ")[0].rstrip(",;:")
            if name.startswith(FOLDERS) and "<" not in name:
                if not glob.glob(os.path.join(self.root, name)):
                    self.blame(page, line, f"{name} does not exist")
            elif match := re.match(r"^(\w+)\.(\w+)$", name):
                self.check_dotted(page, line, text, *match.groups())
            elif match := re.match(r"^(\w+)\.([A-Z]\w*)\.\*$", text):
                if match.group(2) not in self.suites:
                    self.blame(page, line, f"no test has the suite {match.group(2)}")
            elif (match := re.match(r"^\[(\w+)\]", text)) and match.group(1) not in self.sections:
                self.blame(page, line, f"a deck has no section {text}")

    def check_dotted(self, page, line, text, first, second):
        if first in ("fault", "jobs", "style", "docs"):  # CTest's name of a script or campaign
            if not re.search(rf"\b{second}\b", self.listed):
                self.blame(page, line, f"there is no test {text}")
        elif first in self.sections and not re.match(r"^(ini|json|md|cpp|hpp|h5|txt)$", second):
            if f"{first}.{second}" not in self.keys:
                self.blame(page, line, f"there is no deck key {text}")

    def check_decks(self, page):
        for block in page.blocks:
            if block.language != "ini":
                continue
            section = ""
            for offset, line in enumerate(block.lines):
                if match := re.match(r"^\[(\w+)\]", line):
                    section = match.group(1)
                elif (match := re.match(r"^(\w+) *=", line)) and f"{section}.{match.group(1)}" not in self.keys:
                    self.blame(page, block.line + offset, f"there is no deck key {section}.{match.group(1)}")

    def check_readme(self):
        page = self.pages["README.md"]
        counts = {"lines": len(page.lines) - 1, "words": len(" ".join(page.lines).split())}
        for what, count in counts.items():
            if count > README_LIMITS[what]:
                self.blame(page, 1, f"{count} {what} (at most {README_LIMITS[what]})")
        for line, text in paragraphs(page):
            if len(prose_of(text)) > README_LIMITS["words of a paragraph"]:
                self.blame(page, line, f"a paragraph of {len(prose_of(text))} words")
        return counts

    def check_page(self, page):
        """A page of docs begins with a command, and its paragraphs can be read."""
        if page.path.startswith("docs/") and not page.path.startswith(WITHOUT_COMMAND):
            first = next((line for line in page.lines[1:] if line.strip()), "")
            if not re.match(r"```(sh|console)$", first):
                self.blame(page, 3, "the page does not begin with a command")
        for line, text in paragraphs(page):
            if len(prose_of(text)) > PARAGRAPH_LIMIT:
                self.blame(page, line, f"a paragraph of {len(prose_of(text))} words (at most {PARAGRAPH_LIMIT})")

    def check_linked(self):
        """Every page of docs is reached from README.md by links."""
        reached, queue = set(), ["README.md"]
        while queue:
            path = queue.pop()
            if path in reached or path not in self.pages:
                continue
            reached.add(path)
            for _, target in self.pages[path].links():
                queue.append(os.path.normpath(os.path.join(os.path.dirname(path), target.partition("#")[0])))
        for path, page in self.pages.items():
            if path.startswith("docs/") and path not in reached:
                self.blame(page, 1, "no page links to this one")

    def check_blocks(self, page):
        """Commands stand in blocks that are run or checked."""
        for block in page.blocks:
            if block.language not in ("sh", "console", "ini", "cpp", "text", "json", "python"):
                self.blame(page, block.line, f"a block of '{block.language}': mark commands `sh` or `console`, output `text`")
            elif block.language in ("sh", "console") and not commands(block):
                self.blame(page, block.line, "a block of commands without a command")


def controls(check):
    """Mistakes on a page of mistakes are found."""
    page = Page.__new__(Page)
    page.path, page.blocks = "docs/control.md", []
    page.prose = [(1, "[x](nowhere.md) [y](deck.md#nonsense) `tests/nothing.cpp` `model.nonsense` `decks.Nonsense.*` "
                      "`fault.nonsense` `[nonsense]`")]
    check.check_links(page)
    check.check_code(page)
    page.lines = ["# Control", "", "A page of words.", ""]
    page.prose += [(2, ""), (3, "word " * (PARAGRAPH_LIMIT + 1))]
    check.check_page(page)
    check.pages[page.path] = page
    check.check_linked()
    del check.pages[page.path]
    found = len([line for line in check.wrong if line.startswith(page.path)])
    check.wrong = []
    if found != 10:
        sys.exit(f"control: {found} of 10 mistakes were found")


def main():
    check = Check(os.path.abspath(sys.argv[1]), sys.argv[2])
    controls(check)
    for page in list(check.pages.values()):
        check.check_links(page)
        if page.path != "docs/deck.md":
            check.check_code(page)
        check.check_decks(page)
        if not page.path.startswith("benchmarks/"):
            check.check_blocks(page)
        check.check_page(page)
    check.check_linked()
    counts = check.check_readme()
    for line in check.wrong:
        print(line)
    print(f"{len(check.pages)} pages; README has {counts['lines']} lines and {counts['words']} words")
    sys.exit(1 if check.wrong else 0)


main()
