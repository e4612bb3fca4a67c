#!/usr/bin/env python3
"""How true --estimate --network is: steps of a decoder on hosts with ports of limited speed (tests/jobs/network_hosts.sh:
namespaces of this machine), beside what --estimate predicts, for both orders of reduction.

    benchmarks/network.py LLMTRAIN [--rates 200 500] [--stages 0 1 3] [--orders ordered tree] [--steps 4] [--rounds 1]
        [--hosts 4] [--ranks 2] [--groups 32] [--option section.key=value ...]

Rates are in Mb/s, of a host's port in each direction. A step of the ordered run has so many groups, one of the tree as
many as ranks, both the same micro-batches. Printed are, by run: the bytes that a port moves in a step by the hosts' own
counters, over traffic/port_bytes; the time of a step, the median over all rounds without each run's first; the network's
and the whole step's by --estimate --measure, and the ratio. All hosts share this machine's processors, which is slower
than hosts of their own: computing is that of all ranks together on this machine without a network, measured in the same
round. Environment: MPIRUN (mpirun).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import training

HOSTS = os.path.join(training.HERE, "..", "tests", "jobs", "network_hosts.sh")
DECK = """[model]
family = llama
d_model = {width}
n_layers = {layers}
n_heads = {heads}
[data]
train = builtin:stories
tokenizer = char
document_separator = blank_line
packing = wrap
[batch]
sequence_length = 32
micro = 1
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
samples_every_steps = 0
sinks = jsonl
"""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=training.program_file)
    parser.add_argument("--rates", type=training.positive, nargs="+", default=[200, 500])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--orders", nargs="+", default=["ordered", "tree"], choices=["ordered", "tree"])
    parser.add_argument("--steps", type=training.positive, default=4)
    parser.add_argument("--rounds", type=training.positive, default=1)
    parser.add_argument("--hosts", type=training.positive, default=4)
    parser.add_argument("--ranks", type=training.positive, default=2, help="of a host")
    parser.add_argument("--groups", type=training.positive, default=32, help="of the ordered run")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--json", help="file for a line a run")
    return parser.parse_args()


def start_hosts(args):
    """This program once more, on a network of hosts."""
    environment = dict(os.environ, HOSTS=str(args.hosts), SLOTS=str(args.ranks))
    sys.exit(subprocess.call([HOSTS, sys.executable, os.path.abspath(__file__)] + sys.argv[1:], env=environment))


class Bench:
    def __init__(self, args, work):
        self.args, self.work, self.runs = args, work, 0
        self.size = args.hosts * args.ranks
        self.deck = os.path.join(work, "deck.ini")
        with open(self.deck, "w") as f:
            f.write(DECK.format(width=args.width, layers=args.layers, heads=args.width // 64))

    def options(self, order, stage):
        groups = self.args.groups if order == "ordered" else self.size
        return [f"run.output={self.work}/runs", f"data.cache={self.work}/cache", f"parallel.zero={stage}",
                f"batch.global={self.args.groups}", f"parallel.reduction={order}",
                f"parallel.reduction_groups={groups}"] + self.args.option

    def mpirun(self, extra, options):
        command = os.environ.get("MPIRUN", "mpirun").split() + extra + ["-n", str(self.size)]
        return command + [os.path.abspath(self.args.program), self.deck] + options

    def estimate(self, order, stage, rates):
        """By rate; all ranks compute on this machine, without a network."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PRTE_MCA_")}
        environment.pop("OMPI_MCA_btl_tcp_if_include", None)
        found = {}
        for rate in rates:
            options = self.options(order, stage) + [
                "run.max_steps=20", "--estimate", "--measure", "--json", "--ranks", str(self.size), "--ranks-per-node",
                str(self.args.ranks), "--network", f"{rate}Mb/s"]
            text = training.checked(self.mpirun(["--oversubscribe"], options), environment)["output"]
            found[rate] = json.loads(text[text.index("{"):])
        return found

    def run(self, order, stage, rate):
        self.runs += 1
        name = f"run{self.runs}"
        subprocess.check_call(["rate", str(rate)])
        options = self.options(order, stage) + [f"run.name={name}", f"run.max_steps={self.args.steps + 1}"]
        path = os.path.join(self.work, "runs", name, "metrics.jsonl")
        with open(os.path.join(self.work, "output"), "w+") as output:
            job = subprocess.Popen(self.mpirun([], options), stdout=output, stderr=subprocess.STDOUT)
            counts = {}
            while job.poll() is None:
                count = len(self.steps(path))
                if count > 0 and count not in counts:
                    counts[count] = self.port_bytes()
                time.sleep(0.01)
            if job.returncode != 0:
                output.seek(0)
                sys.exit(f"exit code {job.returncode}: {output.read()[-4000:]}")
        lines = self.steps(path)
        counts.setdefault(self.args.steps + 1, self.port_bytes())
        first, last = min(counts), self.args.steps + 1
        moved = max(b - a for a, b in zip(counts[first], counts[last])) / (last - first)
        return dict(seconds=[line["seconds"]["step"] for line in lines[1:]], moved=moved,
                    port_bytes=lines[-1]["traffic/port_bytes"], messages=lines[-1]["traffic/messages"])

    @staticmethod
    def steps(path):
        try:
            with open(path) as f:
                lines = [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []
        return [line for line in lines if "traffic/port_bytes" in line]

    @staticmethod
    def port_bytes():
        """Of all ports, both directions."""
        lines = subprocess.check_output(["bytes"], text=True).splitlines()
        return [int(number) for line in lines for number in line.split()[1:]]


def main():
    args = parse()
    if "HOSTS_FOLDER" not in os.environ:
        start_hosts(args)
    print(f"on {training.processor()}, {args.hosts} hosts x {args.ranks} ranks; load before: {os.getloadavg()[0]:.1f}")
    cases = [(order, stage, rate) for stage in args.stages for rate in args.rates for order in args.orders]
    taken = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(dir=os.environ["HOSTS_FOLDER"]) as work:
        bench = Bench(args, work)
        for _ in range(args.rounds):
            for order in args.orders:
                for stage in args.stages:
                    plans = bench.estimate(order, stage, args.rates)
                    for rate in args.rates:
                        run = dict(bench.run(order, stage, rate), plan=plans[rate], load=os.getloadavg()[0])
                        taken[order, stage, rate].append(run)
                        if args.json:
                            with open(args.json, "a") as f:
                                f.write(json.dumps(dict(order=order, stage=stage, rate=rate, **run)) + "\n")
    print(f"{'order':<8} {'zero':>4} {'Mb/s':>6} {'port MB':>8} {'wire/port':>9} {'messages':>8} {'computing':>9} "
          f"{'network':>8} {'estimate':>8} {'no overlap':>10} {'step':>8} {'step/estimate':>13}")
    medians = {}
    for case in cases:
        runs = taken[case]
        step = statistics.median(s for run in runs for s in run["seconds"])
        plan = {key: statistics.median(run["plan"][key] for run in runs) for key in (
            "computing_seconds", "network_seconds", "step_seconds", "step_seconds_without_overlap")}
        port, wire = runs[0]["port_bytes"], statistics.median(run["moved"] for run in runs)
        medians[case] = step, plan["step_seconds"]
        print(f"{case[0]:<8} {case[1]:>4} {case[2]:>6} {port / 1e6:8.1f} {wire / port:9.3f} {runs[0]['messages']:>8.0f} "
              f"{plan['computing_seconds']:9.3f} {plan['network_seconds']:8.3f} {plan['step_seconds']:8.3f} "
              f"{plan['step_seconds_without_overlap']:10.3f} {step:8.3f} {step / plan['step_seconds']:13.3f}")
    if set(args.orders) == {"ordered", "tree"}:
        for stage in args.stages:
            for rate in args.rates:
                (a, wanted_a), (b, wanted_b) = medians["ordered", stage, rate], medians["tree", stage, rate]
                print(f"zero {stage}, {rate} Mb/s: the tree is {a / b:.2f} times as fast, {wanted_a / wanted_b:.2f} by the "
                      "estimate")


if __name__ == "__main__":
    main()
