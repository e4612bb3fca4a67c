#!/usr/bin/env python3
"""kernel_code.py FILE...: what the compiler made of the kernels that take most of a step, as a table of Markdown.

FILE is an object or library of the CUDA build with machine code of compute capability 9.0. cuobjdump and c++filt are in PATH.
Exit 1 if a kernel is missing, spills registers, or has no access of 16 bytes where it should. Needs no GPU.
"""
import re
import subprocess
import sys

# Name, pattern of the demangled name, bytes of its widest loads from global memory.
KERNELS = [
    ("attention, heads of 64, forward", r"TiledForward<64, llmtrain::bf16>", 16),
    ("heads of 64, dk and dv", r"TiledBackwardKey<64, llmtrain::bf16, true, true>", 16),
    ("heads of 64, dq", r"TiledBackwardQuery<64, llmtrain::bf16>", 16),
    ("heads of 128, forward", r"TiledForward<128, llmtrain::bf16>", 16),
    ("heads of 128, dk and dv", r"TiledBackwardKey<128, llmtrain::bf16, true, true>", 16),
    ("heads of 128, dq", r"TiledBackwardQuery<128, llmtrain::bf16>", 16),
    ("heads of 256, forward", r"TiledForward<256, llmtrain::bf16>", 16),
    ("heads of 256, dk", r"TiledBackwardKey<256, llmtrain::bf16, true, false>", 16),
    ("heads of 256, dv", r"TiledBackwardKey<256, llmtrain::bf16, false, true>", 16),
    ("heads of 256, dq", r"TiledBackwardQuery<256, llmtrain::bf16>", 16),
    ("head: statistics and gradient of logits",
     r"ScoreAndDifferentiate<.*ForwardRow<false, false, false>, llmtrain::bf16>", 16),
    ("norm with a sum, forward", r"ForwardRow<llmtrain::bf16, llmtrain::bf16, .*InputWithBranch<llmtrain::bf16>, true>", 16),
    ("norm with a branch, backward",
     r"BackwardRows<llmtrain::bf16, llmtrain::bf16, .*GradientWithBranch<llmtrain::bf16>", 16),
    ("activation, forward", r"ForwardPack<.*GeluTanh, true, llmtrain::bf16>", 16),
    ("activation, backward", r"BackwardPack<llmtrain::bf16>", 16),
    ("rotation of heads", r"ForEach<.*Rotate<llmtrain::bf16>", 16),
    ("AdamW", r"ForEach<.*Update<llmtrain::bf16> >", 16),
    ("AdamW in 8 bits", r"run<llmtrain::\(anonymous namespace\)::Update<llmtrain::bf16> >", 4),
    ("NF4 to bf16", r"ForEachWarp<.*DequantizeBlocks<llmtrain::bf16>", 4),
    ("decoding: attention to a cache", r"AttendSplit<llmtrain::bf16, 1>", 8),
]
GLOBAL = re.compile(r"(LDG|STG|LDGSTS|LD|ST)\.E((?:\.\w+)*)")  # LD and ST: the address was not known to be global


def dump(option, files):
    lines = []
    for file in files:
        text = subprocess.run(["cuobjdump", "-arch", "sm_90", option, file], capture_output=True, text=True, check=True).stdout
        lines += text.splitlines()
    text = subprocess.run(["c++filt"], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    return text.splitlines()


def instructions(files):
    """The instructions of each kernel."""
    kernels, own = {}, None
    for line in dump("-sass", files):
        if (name := re.search(r"Function : (.*)", line)) is not None:
            own = kernels.setdefault(name.group(1), [])
        elif (found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?(.*?);", line)) is not None and own is not None:
            own.append(found.group(1))
    return kernels


def resources(files):
    """Registers, bytes of stack and of static shared memory of each kernel."""
    kernels, own = {}, None
    for line in dump("-res-usage", files):
        if (name := re.search(r"Function (.*):$", line)) is not None:
            own = name.group(1)
        elif (found := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", line)) is not None and own is not None:
            kernels[own] = [int(number) for number in found.groups()]
    return kernels


def accesses(code, kinds):
    """Numbers of instructions that access 16, 8 and fewer bytes of global memory."""
    counts = [0, 0, 0]
    for instruction in code:
        match = GLOBAL.match(instruction)
        if match is None or match.group(1) not in kinds:
            continue
        widths = match.group(2).split(".")
        counts[0 if "128" in widths else 1 if "64" in widths else 2] += 1
    return counts


def main():
    files = sys.argv[1:]
    if not files:
        sys.exit(__doc__)
    code, used = instructions(files), resources(files)
    failed = False
    print("| kernel | instructions | registers | stack, bytes | LDL, STL | loads of 16 / 8 / fewer bytes | stores |")
    print("|---|---|---|---|---|---|---|")
    for title, pattern, width in KERNELS:
        names = [name for name in code if re.search(pattern, name)]
        if not names:
            print(f"| {title} | not found |")
            failed = True
            continue
        body = code[names[0]]
        registers, stack, _ = used[names[0]]
        local = sum(instruction.startswith(("LDL", "STL")) for instruction in body)
        loads, stores = accesses(body, ("LDG", "LDGSTS", "LD")), accesses(body, ("STG", "ST"))
        wide = loads[0] > 0 or (width <= 8 and loads[1] > 0) or width <= 4
        failed |= stack > 0 or local > 0 or not wide
        print(f"| {title} | {len(body)} | {registers} | {stack} | {local} | {' / '.join(map(str, loads))} | "
              f"{' / '.join(map(str, stores))} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
