"""run_commands.py [--page PAGE] [--show] ROOT LLMTRAIN LLMTOOL MPIRUN...: runs the commands of README.md and docs/.

Every block marked `sh` is a list of commands, and every block marked `console` is commands behind "$ " with what they
print. They run in order, in a folder of the page's own, with the built programs on the PATH and the stand-ins of the
tables below. A block `ini NAME` is written to the file NAME first and checked by llmtrain --check. What a console block
shows must be what the program prints, numbers masked; "..." stands for any lines. Commands that install, build or need
a cluster or a GPU are checked instead of run: their syntax, and the files, options and deck keys that they name.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

from pages import check_command, commands, deck_keys, pages

# Programs that are not run: they install, build, fetch, or need a cluster.
CHECKED = {"ansible", "apt-get", "cmake", "cpack", "ctest", "git", "hf", "module", "perf", "pip", "python", "python3",
           "salloc", "sbatch", "scancel", "scontrol", "spack", "squeue", "srun", "sudo", "tar", "duckdb", "eval"}
OPTIONAL = {"h5dump", "jq", "gnuplot"}  # run where they are installed
# Commands with such words are not run either: scripts of the tree, and programs of its build folders.
ELSEWHERE = ("jobs/", "tests/", "benchmarks/", "cmake/", "build/", "docs/", "llmtrain-gpu/", "nsys", "KOKKOS_TOOLS_LIBS=")
# Scripts of the tree that are not run as they stand, and what takes their place.
SCRIPTS = {r"jobs/quickstart\.sh (\S+\.txt)": r"mpirun -n 2 llmtrain inputs/quickstart.ini data.train=\1 run.overwrite=true",
           r"jobs/quickstart\.sh": "mpirun -n 2 llmtrain inputs/quickstart.ini run.overwrite=true",
           # It serves until it is stopped.
           r"llmtool serve (\S+)": r"timeout --preserve-status 2 llmtool serve \1 --port 0"}
# Every training run of the pages is this short. The command line of the page comes behind, and wins.
SHORT = ["run.max_steps=4", "log.every_steps=1", "evaluation.every_steps=2", "evaluation.batches=1", "checkpoint.every_steps=2",
         "log.samples_every_steps=0", "run.time_limit=none"]
# Decks whose model or batch is too large for a test are this small.
SMALL = {"inputs/small.ini": ["model.d_model=32", "model.d_ff=64", "batch.global=4", "batch.micro=1", "batch.sequence_length=64"],
         "inputs/medium.ini": ["model.d_model=24", "model.d_ff=32", "model.vocab_size=512", "batch.global=4",
                               "batch.sequence_length=64"],
         "inputs/quickstart.ini": ["model.d_model=24"],
         "inputs/experts.ini": ["model.d_model=24", "model.d_ff_expert=16"],
         "inputs/long.ini": ["model.n_layers=2", "batch.sequence_length=1024"],
         "inputs/sft.ini": ["batch.global=4"],
         "inputs/reward.ini": ["batch.global=4", "batch.micro=2", "batch.sequence_length=128"],
         "inputs/classify.ini": ["batch.global=4", "batch.micro=2", "batch.sequence_length=128"],
         "inputs/evaluate.ini": ["evaluation.batches=2", "evaluation.max_new_tokens=8", "batch.sequence_length=256"],
         "inputs/generate.ini": ["generate.max_new_tokens=8", "batch.sequence_length=256"],
         "inputs/freeze.ini": ["batch.global=4"],
         "inputs/lora.ini": ["batch.global=4"],
         "inputs/dora.ini": ["batch.global=4"],
         "inputs/qlora.ini": ["batch.global=4"],
         "inputs/int8.ini": ["batch.global=4"],
         "inputs/curriculum.ini": ["model.d_model=24", "batch.global=4"],
         "inputs/dpo.ini": ["batch.global=4", "batch.micro=2"],
         "inputs/dpo_lora.ini": ["batch.global=4", "batch.micro=2"],
         "inputs/kto.ini": ["batch.global=4", "batch.micro=2"],
         "inputs/grpo.ini": ["batch.global=8", "rollout.max_new_tokens=8"],
         "inputs/ppo.ini": ["batch.global=4", "batch.micro=2", "rollout.max_new_tokens=8"]}
# Files that a reader has and the folder of a page gets: name -> the command that makes it, once for all pages.
STAND_INS = {
    "my.txt": "llmtool corpus stories --bytes 60K --seed 3 --output my.txt",
    "valid.txt": "llmtool corpus stories --bytes 20K --seed 4 --output valid.txt",
    "web.jsonl": f"{sys.executable} -c 'import json; [print(json.dumps(dict(text=t))) for t in open(\"my.txt\").read().split(\"\\n\\n\")]' >web.jsonl",
    "code.jsonl": "head -n 40 web.jsonl >code.jsonl",
    "chats.jsonl": "llmtool corpus questions --bytes 9K --seed 5 --output chats.jsonl",
    "pairs.jsonl": f"{sys.executable} -c 'import json; [print(json.dumps(dict(prompt=t[:40], chosen=t[40:90], rejected=t[40:60]))) for t in open(\"my.txt\").read().split(\"\\n\\n\") if len(t) > 90]' >pairs.jsonl",
    "labelled.jsonl": f"{sys.executable} -c 'import json; [print(json.dumps(dict(text=t, label=(\"even\", \"odd\")[len(t) % 2]))) for t in open(\"my.txt\").read().split(\"\\n\\n\") if t]' >labelled.jsonl",
    "rows.csv": f"{sys.executable} -c 'import csv, sys; w = csv.writer(sys.stdout); w.writerow([\"content\"]); [w.writerow([t]) for t in open(\"my.txt\").read().split(\"\\n\\n\") if t]' >rows.csv",
    "lr.ini": "printf '[run]\\nmax_steps = 4\\n[model]\\nd_model = {16, 24}\\nn_layers = 1\\nn_heads = 2\\n[data]\\ntrain = my.txt\\ntokenizer = char\\n[batch]\\nsequence_length = 32\\n' >lr.ini",
    "gpt2": """printf '[run]\\nmax_steps = 2\\n[model]\\nd_model = 16\\nn_layers = 1\\nn_heads = 2\\n[data]\\ntrain = my.txt
tokenizer = bpe\\ndocument_separator = blank_line\\nvocab_size = 512\\n[batch]\\nsequence_length = 256\\n[checkpoint]\\nexport = last\\n' >gpt2.ini
llmtrain gpt2.ini && mv runs/gpt2/export gpt2 && rm -r runs gpt2.ini""",
    "stories260K": "cp -r gpt2 stories260K",
    "gpt2-xl": "cp -r gpt2 gpt2-xl",
    "my-llama": """printf '[run]\\nmax_steps = 2\\n[model]\\nfamily = llama\\nd_model = 16\\nn_layers = 1\\nn_heads = 2\\n[data]\\ntrain = my.txt
tokenizer = bpe\\ndocument_separator = blank_line\\nvocab_size = 512\\n[batch]\\nsequence_length = 256\\n[checkpoint]\\nexport = last\\n' >my-llama.ini
llmtrain my-llama.ini && mv runs/my-llama/export my-llama && rm -r runs my-llama.ini""",
}


class Failure(Exception):
    pass


def masked(line):
    """A line of output without what differs from run to run: numbers, units of speed and time, bars, trailing notes."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    line = re.sub(r"  left .*$", "", line)
    line = re.sub(r"0x[0-9a-fp+.-]+|\b(?=[0-9]*[a-f])[0-9a-f]{16,}\b", "N", line)
    line = re.sub(r"  val +[0-9.]+", "", line)
    line = re.sub(r"[-+]?[0-9][0-9,.]*(e[-+]?[0-9]+)?", "N", line)
    line = re.sub(r"\b(k|M|G)?tok/s\b", "tok/s", line)
    line = re.sub(r"\b[kMGT]?FLOP/s\b", "FLOP/s", line)
    line = re.sub(r"\b[kMGT]?B/s\b", "B/s", line)
    line = re.sub(r"\b[KMGT]i?B\b", "B", line)
    line = re.sub(r"\b(ms|s|min|h)\b", "T", line)
    line = re.sub(r"(N T ?)+", "N T ", line)
    return re.sub(r"\s+", " ", line).strip()


# Lines whose text is the machine's or the text's own, so that only their first word must be there.
OWN_TEXT = re.compile(r"^(device|llmtrain|weights|memory|Kokkos|tokens are|  \||time|saved|packing|profile|  time)")


def first_missing(shown, printed):
    """The first shown line that was not printed, in order; None if all were."""
    at = 0
    have = [masked(line) for line in printed]
    for line in shown:
        if not line.strip() or line.strip() == "...":
            continue
        want = masked(line)
        own = OWN_TEXT.match(line)
        while at < len(have):
            at += 1
            if have[at - 1] == want or (own and have[at - 1].split(" ")[0] == want.split(" ")[0]):
                break
        else:
            return line
    return None


class Runner:
    def __init__(self, root, llmtrain, llmtool, mpirun, work, show):
        self.root, self.work, self.show = root, work, show
        self.keys = deck_keys(llmtrain)
        self.bin = os.path.join(work, "bin")
        os.makedirs(self.bin)
        self.environment = dict(os.environ, PATH=self.bin + ":" + os.environ["PATH"], PYTHONDONTWRITEBYTECODE="1",
                                LLMTRAIN="llmtrain", HOME=work, TMPDIR=work)
        real = os.path.abspath(llmtrain)
        small = "".join(f"    {deck}) tiny=({' '.join(more)}) ;;\n" for deck, more in SMALL.items())
        self.program("llmtrain", f"""tiny=()
case " $* " in *' --help'* | *' -h '* | *' --version '* | *' --check '* | *' --estimate '*) exec {real} "$@" ;; esac
case ${{1:-}} in
  *.ini)
    case $1 in
{small}    esac
    deck=$1 && shift
    for setting in {' '.join(SHORT)} data.cache={work}/cache "${{tiny[@]}}"; do
      [[ " $* " == *" ${{setting%%=*}}="* ]] || set -- "$@" "$setting"
    done
    exec {real} "$deck" "$@" ;;
esac
exec {real} "$@"
""")
        self.program("llmtool", f'exec {os.path.abspath(llmtool)} "$@"\n')
        launcher = " ".join([shutil.which(mpirun[0]) or mpirun[0]] + mpirun[1:-1])
        self.program("mpirun", f'exec {launcher} "$@"\n')
        self.stand_ins = os.path.join(work, "stand_ins")
        os.makedirs(self.stand_ins)
        for name, command in STAND_INS.items():
            self.bash(command, self.stand_ins)

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + text)
        os.chmod(path, 0o755)

    def bash(self, command, folder, environment=None):
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", command], cwd=folder, env=environment or self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=120)
        if self.show:
            print(f"$ {command}\n{done.stdout}", end="", flush=True)
        if done.returncode != 0:
            raise Failure(f"`{command}` ended with exit code {done.returncode}:\n{done.stdout[-1500:]}")
        return done.stdout

    def folder_of(self, page):
        folder = os.path.join(self.work, re.sub(r"\W", "_", page))
        shutil.copytree(self.stand_ins, folder)
        for name in ("inputs", "jobs", "docs"):
            os.symlink(os.path.join(self.root, name), os.path.join(folder, name))
        return folder

    def run(self, page):
        """Runs a page; returns how many commands ran and how many were checked."""
        folder = self.folder_of(page.path)
        environment = dict(self.environment)
        ran = checked = 0
        for block in page.blocks:
            if block.language == "ini" and block.arguments:
                with open(os.path.join(folder, block.arguments[0]), "w", encoding="utf-8") as file:
                    file.write("\n".join(block.lines) + "\n")
                self.at(block, 0, lambda: self.bash(f"llmtrain {block.arguments[0]} --check", folder, environment))
                continue
            if block.language not in ("sh", "console"):
                continue
            for offset, command, shown in commands(block):
                words = [word for word in command.split() if not re.match(r"^[A-Z_]+=", word)]
                name = words[0] if words else ""
                if name == "export":
                    environment.update(re.findall(r"([A-Z_]+)=(\S+)", command))
                    continue
                for script, stand_in in SCRIPTS.items():
                    command = re.sub(script, stand_in, command)
                elsewhere = any(word.startswith(ELSEWHERE) for word in command.split())
                if name in CHECKED or elsewhere or (name in OPTIONAL and not shutil.which(name)):
                    if wrong := check_command(self.root, command, self.keys):
                        raise Failure(f"{block.where(offset)}: `{command}`: {'; '.join(wrong)}")
                    checked += 1
                    continue
                printed = self.at(block, offset, lambda: self.bash(command, folder, environment)).split("\n")
                missing = first_missing(shown, printed)
                if missing is not None:
                    raise Failure(f"{block.where(offset)}: `{command}` does not print a line like\n  {missing}\nbut\n" +
                                  "\n".join(printed))
                ran += 1
        return ran, checked

    @staticmethod
    def at(block, offset, act):
        try:
            return act()
        except (Failure, subprocess.TimeoutExpired) as error:
            raise Failure(f"{block.where(offset)}: {error}") from None


def controls(runner):
    """What must be found wrong is."""
    assert first_missing(["step 10/20  loss 3.1"], ["step 4/4  loss 2.75"]) is None
    assert first_missing(["step 10/20  loss 3.1"], ["step 4/4  perplexity 2.75"]) is not None
    assert first_missing(["b", "a"], ["a", "b"]) is not None
    wrong = check_command(runner.root, "sbatch jobs/nothing.sbatch inputs/small.ini run.nonsense=1", runner.keys)
    assert len(wrong) == 2, wrong
    assert check_command(runner.root, "tests/run.sh --nonsense", runner.keys)
    assert check_command(runner.root, "cmake --preset nonsense", runner.keys)
    try:
        runner.bash("llmtrain inputs/small.ini run.nonsense=1", runner.folder_of("control"))
    except Failure:
        return
    raise SystemExit("control: a wrong command passed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("llmtrain")
    parser.add_argument("llmtool")
    parser.add_argument("mpirun", nargs=argparse.REMAINDER, help="the launcher and its options, up to the number of ranks")
    parser.add_argument("--page", action="append", help="this page only, such as docs/data.md")
    parser.add_argument("--show", action="store_true", help="print every command and its output")
    arguments = parser.parse_args()
    work = tempfile.mkdtemp()
    failures = []
    totals = [0, 0]
    try:
        runner = Runner(os.path.abspath(arguments.root), arguments.llmtrain, arguments.llmtool, arguments.mpirun, work,
                        arguments.show)
        controls(runner)
        queue = [page for page in pages(runner.root) if page.path.startswith(("README", "docs/")) and
                 (not arguments.page or page.path in arguments.page)]

        def worker():
            while queue:
                page = queue.pop(0)
                try:
                    for i, count in enumerate(runner.run(page)):
                        totals[i] += count
                except Failure as failure:
                    failures.append(str(failure))

        threads = [threading.Thread(target=worker) for _ in range(1 if arguments.show else 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for failure in failures:
        print("FAILED: " + failure)
    print(f"{totals[0]} commands ran, {totals[1]} were checked")
    sys.exit(1 if failures or (totals[0] == 0 and not arguments.page) else 0)


main()
