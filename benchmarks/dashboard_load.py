#!/usr/bin/env python3
"""What watchers of a dashboard cost a run beside it.

dashboard_load.py LLMTRAIN LLMTOOL DECK [section.key=value ...] [--watchers 200] [--seconds 40] [--rounds 2]

Trains, serves, and compares phases with watchers to phases without, in turn: processor time of the run per step, steps
per second, and processor time of the server.
"""
import argparse
import asyncio
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def steps_of(run):
    return (run / "ledger.jsonl").read_bytes().count(b'"loss"')


async def watch(port, until, counts):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /events?runs=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        while time.monotonic() < until:
            data = await asyncio.wait_for(reader.read(1 << 16), max(0.1, until - time.monotonic()))
            if not data:
                counts["ended"] += 1
                return
            counts["bytes"] += len(data)
            counts["frames"] += data.count(b"\nid: ")
    except asyncio.TimeoutError:
        pass
    finally:
        writer.close()


async def crowd(port, watchers, seconds, counts):
    until = time.monotonic() + seconds
    await asyncio.gather(*(watch(port, until, counts) for _ in range(watchers)))


def phase(arguments, job, server, run, port, watchers):
    counts = {"bytes": 0, "frames": 0, "ended": 0}
    before = time.monotonic(), steps_of(run), processor_seconds(job.pid), processor_seconds(server.pid)
    if watchers > 0:
        asyncio.run(crowd(port, watchers, arguments.seconds, counts))
    else:
        time.sleep(arguments.seconds)
    after = time.monotonic(), steps_of(run), processor_seconds(job.pid), processor_seconds(server.pid)
    wall, steps, of_run, of_server = (b - a for a, b in zip(before, after))
    print(f"{watchers:3} watchers: {wall:5.1f} s, {steps} steps, {1000 * of_run / max(steps, 1):.2f} ms of processor per step, "
          f"{steps / wall:.2f} steps/s; server {1000 * of_server / wall:.2f} ms of processor per second, "
          f"{100 * of_server / of_run:.2f} % of the run's; {counts['frames']} frames, {counts['bytes'] / 1e6:.1f} MB, "
          f"{counts['ended']} streams ended", flush=True)
    return of_run / max(steps, 1), of_server / of_run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llmtrain")
    parser.add_argument("llmtool")
    parser.add_argument("deck")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = pathlib.Path(name) / "load"
        command = [arguments.llmtrain, arguments.deck, f"run.output={name}", "run.name=load", "run.max_steps=1000000"]
        job = subprocess.Popen(command + arguments.overrides, stdout=subprocess.DEVNULL)
        try:
            while not (run / "ledger.jsonl").exists() or steps_of(run) < 20:
                time.sleep(0.2)
                if job.poll() is not None:
                    sys.exit("the run has ended")
            server = subprocess.Popen([arguments.llmtool, "serve", str(run), "--port", "0"], stdout=subprocess.PIPE, text=True)
            port = int(server.stdout.readline().rsplit(":", 1)[1].split("/")[0])
            phases = [phase(arguments, job, server, run, port, watchers)
                      for _ in range(arguments.rounds) for watchers in (0, arguments.watchers)]
            server.terminate()
            server.wait()
        finally:
            job.kill()
            job.wait()
    alone = sum(own for own, _ in phases[::2]) / arguments.rounds
    watched = sum(own for own, _ in phases[1::2]) / arguments.rounds
    print(f"the run's processor time per step: {100 * (watched / alone - 1):+.2f} % with watchers; "
          f"the server: {100 * max(share for _, share in phases[1::2]):.2f} % of the run's at most")


if __name__ == "__main__":
    main()
