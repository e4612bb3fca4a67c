#!/usr/bin/env python3
"""step_flow.py [--check]: draws step_flow.svg, how a training step flows through the rooms of the source on two ranks.

With --check it compares instead: the picture beside this script must be what the script draws, and every room that it
names must exist. Only the standard library is needed.
"""

import sys
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

WIDTH, MARGIN, LABEL = 1120, 16, 72
LANE, BETWEEN = 128, 58  # height of a rank's boxes, and the gap in which ranks exchange
HEADER = 30

STYLE = """
  .page { fill: #ffffff }
  .lane { fill: #f2f4f7 }
  .box { fill: #ffffff; stroke: #5b6b7f; stroke-width: 1.2 }
  .all { fill: #e8f0fb; stroke: #3b6cb0; stroke-width: 1.2 }
  .idle { fill: none; stroke: #9aa5b1; stroke-dasharray: 4 3 }
  .loop { fill: none; stroke: #8a6d1f; stroke-width: 1.4; stroke-dasharray: 7 4 }
  .flow { stroke: #5b6b7f; stroke-width: 1.6; fill: none }
  .wire { stroke: #b3472f; stroke-width: 2; fill: none }
  .flowhead { fill: #5b6b7f }
  .wirehead { fill: #b3472f }
  text { font-family: Helvetica, Arial, sans-serif; font-size: 11.6px; fill: #1c2733 }
  .title { font-size: 17px; font-weight: bold }
  .head { font-size: 13.5px; font-weight: bold }
  .room { font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 11px; fill: #1f5fa8 }
  .quiet { fill: #5b6b7f }
  .wiretext { fill: #a33a23 }
  .looptext { fill: #7a5f14; font-weight: bold }
"""
DARK = """
    .page { fill: #0d1117 }
    .lane { fill: #161c25 }
    .box { fill: #0d1117; stroke: #8b98a8 }
    .all { fill: #12233c; stroke: #6ea2e6 }
    .idle { stroke: #5d6875 }
    .loop { stroke: #d2ae4b }
    .flow { stroke: #8b98a8 }
    .wire { stroke: #f08a70 }
    .flowhead { fill: #8b98a8 }
    .wirehead { fill: #f08a70 }
    text { fill: #e3e8ee }
    .room { fill: #79b3f5 }
    .quiet { fill: #9aa7b5 }
    .wiretext { fill: #f3a08a }
    .looptext { fill: #e0c06a }
"""

# A column: its title, its rooms, its share of the width, the phase of the profile, and the lines of each rank's box. One
# list of lines: a box for all ranks. None: nothing to do. `between`: what the ranks exchange there.
PASSES = [
    {"title": "Deck and plan", "rooms": ["src/core/deck", "src/train/config", "src/data/stream"], "width": 1.22,
     "phase": "",
     "all": ["The deck alone says", "which micro-batches step", "n has. They form reduction", "groups: rank r of W",
             "computes the groups g", "with g mod W = r.", "", "So every rank knows the", "whole plan, and the result",
             "does not depend on W."]},
    {"title": "Data", "rooms": ["src/data", "src/train"], "width": 0.95, "phase": "data",
     "ranks": [["Micro-batches of", "groups 0, 2, 4 ...", "A thread loads the", "next one ahead."],
               ["Micro-batches of", "groups 1, 3, 5 ...", "A thread loads the", "next one ahead."]]},
    {"title": "Gather", "rooms": ["src/params", "src/parallel"], "width": 0.95, "phase": "in forward and backward",
     "ranks": [["Weights of the next", "unit arrive while", "this one computes", "(ZeRO 3)."]] * 2,
     "between": ["weights", "of a unit"]},
    {"title": "Forward", "rooms": ["src/models", "src/layers", "kernels"], "width": 1, "phase": "forward",
     "ranks": [["Embedding and blocks.", "Layers keep what", "backward needs, or", "compute it again."]] * 2},
    {"title": "Loss", "rooms": ["src/objectives", "src/layers"], "width": 1, "phase": "head",
     "ranks": [["The head scores the", "targets block by block;", "the objective gives", "the derivatives."]] * 2},
    {"title": "Backward", "rooms": ["src/models", "src/layers", "kernels"], "width": 1, "phase": "backward",
     "ranks": [["Units in reverse order.", "Gradients add up in", "fp32 over the micro-", "batches of a group."]] * 2},
]
STEP = [
    {"title": "Reduction", "rooms": ["src/params", "src/parallel"], "width": 1.3, "phase": "reduction",
     "ranks": [["Each unit travels as soon as its", "gradient is complete. The owner", "of a shard adds the groups in",
                "their order: for any number of", "ranks the same sum, bit for bit."]] * 2,
     "between": ["gradients; loss and norm", "as exact integer sums"]},
    {"title": "Update", "rooms": ["src/optim", "src/params"], "width": 1.15, "phase": "update",
     "ranks": [["Check the loss and the norm,", "clip, and apply AdamW to the", "rank's own shard (ZeRO 0:",
                "to everything)."]] * 2,
     "between": ["new weights", "(ZeRO 1 and 2)"]},
    {"title": "Ledger and metrics", "rooms": ["src/metrics"], "width": 1.15, "phase": "log",
     "ranks": [["Rank 0 appends the step to", "ledger.jsonl and metrics.h5", "and prints progress."], None],
     "between": None},
    {"title": "Checkpoint, when due", "rooms": ["src/checkpoint", "src/train"], "width": 1.3, "phase": "",
     "ranks": [["A thread writes this rank's shard", "while training goes on. Rank 0", "publishes: manifest.json last,",
                "then the folder gets its name."],
               ["A thread writes this rank's shard", "while training goes on."]],
     "between": ["every shard is written"]},
]


class Picture:
    def __init__(self):
        self.parts = []

    def add(self, text):
        self.parts.append(text)

    def rect(self, x, y, w, h, kind, radius=6):
        self.add(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}"/>')

    def text(self, x, y, text, kind="", anchor="start"):
        kind = f' class="{kind}"' if kind else ""
        self.add(f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def lines(self, x, y, lines, kind="", anchor="start", leading=17):
        for i, line in enumerate(lines):
            if line:
                self.text(x, y + i * leading, line, kind, anchor)

    def arrow(self, points, kind="flow", both=False):
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        start = f' marker-start="url(#{kind})"' if both else ""
        self.add(f'<path class="{kind}" d="{path}"{start} marker-end="url(#{kind})"/>')


def draw_band(picture, columns, top):
    """Boxes of `columns` on two lanes, from `top` on; where each column lies, and the bottom."""
    gap, left = 22, MARGIN + LABEL
    unit = (WIDTH - MARGIN - left - gap * (len(columns) - 1) - 8) / sum(c["width"] for c in columns)
    rooms = 16 * max(len(c["rooms"]) for c in columns)
    lanes = [top + HEADER + rooms + i * (LANE + BETWEEN) for i in range(2)]
    for rank, y in enumerate(lanes):
        picture.rect(MARGIN, y, WIDTH - 2 * MARGIN, LANE, "lane", 8)
        picture.text(MARGIN + 10, y + LANE / 2 + 5, f"rank {rank}", "head")
    places, x = [], left
    for column in columns:
        width = column["width"] * unit
        places.append((x, width))
        picture.text(x, top + 14, column["title"], "head")
        picture.lines(x, top + 32, column["rooms"], "room", leading=15)
        if "all" in column:
            picture.rect(x, lanes[0] + 8, width, lanes[1] - lanes[0] + LANE - 16, "all")
            picture.lines(x + 9, lanes[0] + 72, column["all"])
        for rank, lines in enumerate(column.get("ranks", [])):
            y = lanes[rank] + 8
            if lines is None:
                picture.rect(x, y, width, LANE - 16, "idle")
                picture.text(x + width / 2, y + LANE / 2 - 4, "nothing to write", "quiet", "middle")
            else:
                picture.rect(x, y, width, LANE - 16, "box")
                picture.lines(x + 9, y + 24, lines)
        if column.get("between"):
            picture.arrow([(x + 20, lanes[0] + LANE - 1), (x + 20, lanes[1] + 1)], "wire", both=True)
            offset = 34 if len(column["between"]) == 1 else 26
            picture.lines(x + 32, lanes[0] + LANE + offset, column["between"], "wiretext", leading=16)
        if column["phase"]:
            picture.text(x + width / 2, lanes[1] + LANE + 18, column["phase"], "quiet", "middle")
        x += width + gap
    for (x, width), (after, _) in zip(places, places[1:]):
        for y in lanes:
            picture.arrow([(x + width + 3, y + LANE / 2), (after - 4, y + LANE / 2)])
    bottom = lanes[1] + LANE + 28
    picture.lines(MARGIN + 6, lanes[1] + LANE + 18, ["phase:"], "quiet")
    return places, lanes, bottom


def draw():
    body = Picture()
    body.text(MARGIN, 32, "One training step on two ranks", "title")
    body.text(MARGIN, 52, "Columns are what happens, with the rooms of the source below their names; rows are ranks. "
              "Grey arrows stay on a rank, red ones go between ranks.", "quiet")
    places, lanes, bottom = draw_band(body, PASSES, 92)
    loop_left, loop_top = places[1][0] - 11, 70
    body.rect(loop_left, loop_top, WIDTH - 6 - loop_left, bottom - loop_top + 4, "loop", 10)
    body.text(WIDTH - 20, loop_top + 17, "for every round and every micro-batch of the rank's group", "looptext", "end")
    top = bottom + 52
    last, first = places[-1], bottom + 4
    body.arrow([(last[0] + last[1] / 2, first), (last[0] + last[1] / 2, first + 18), (MARGIN + LABEL + 60, first + 18),
                (MARGIN + LABEL + 60, first + 34)])
    body.text(WIDTH / 2, first + 14, "when all groups are done", "quiet", "middle")
    _, _, bottom = draw_band(body, STEP, top)
    body.text(MARGIN, bottom + 16, "Phases are the spans of the profile (log.profile), which Kokkos Tools see as regions "
              "and Nsight Systems as NVTX ranges.", "quiet")
    height = bottom + 32
    markers = "".join(
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="{size}" markerHeight="{size}" '
        f'orient="auto-start-reverse"><path class="{kind}head" d="M0 0 L10 5 L0 10 z"/></marker>\n'
        for kind, size in (("flow", 5), ("wire", 4.5)))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" role="img" aria-labelledby="title">\n'
            '<title id="title">One training step on two ranks, by the rooms of the source</title>\n'
            "<!-- Made by step_flow.py: change it there. -->\n"
            f"<style>{STYLE}  @media (prefers-color-scheme: dark) {{{DARK}  }}\n</style>\n<defs>\n{markers}</defs>\n"
            f'<rect class="page" width="{WIDTH}" height="{height:g}"/>\n' + "\n".join(body.parts) + "\n</svg>\n")


def main():
    picture = HERE / "step_flow.svg"
    if sys.argv[1:] != ["--check"]:
        picture.write_text(draw(), encoding="utf-8")
        return
    missing = [room for column in PASSES + STEP for room in column["rooms"] if not (ROOT / room).is_dir()]
    if missing:
        sys.exit(f"step_flow.py names rooms that do not exist: {', '.join(missing)}")
    if picture.read_text(encoding="utf-8") != draw():
        sys.exit("docs/design/step_flow.svg is not what docs/design/step_flow.py draws: run the script")
    print("step_flow.svg is what step_flow.py draws")


if __name__ == "__main__":
    main()
