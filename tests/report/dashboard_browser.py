#!/usr/bin/env python3
"""The dashboard in a real browser: curves appear and move, runs overlay, and the page survives what happens to runs.

dashboard_browser.py LLMTOOL [--screenshots FOLDER]

Needs chromium, chromedriver and the Python package selenium; with axe-playwright-python, which has axe.min.js, it also
checks contrast, labels and the rest of axe's rules at three widths, light and dark. Exit code 77: something is missing.
"""
import argparse
import contextlib
import importlib.util
import json
import math
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

WIDTHS = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 1000)}
HOSTS = ("node001", "node002", "node003")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def eventually(condition, what, seconds=15):
    """Waits until the condition holds, and returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        require(time.monotonic() < end, f"{what} (waited {seconds} s)")
        time.sleep(0.1)


class Run:
    """A run's folder, as llmtrain writes it."""

    def __init__(self, folder, shift, steps=1000):
        self.folder, self.shift, self.step = folder, shift, 0
        (folder / "status").mkdir(parents=True)
        (folder / "deck.ini").write_text(f"[run]\nmax_steps = {steps}  ; deck\nseed = 1  ; default\n")
        (folder / "log.txt").write_text("".join(f"opening line {i}\n" for i in range(30)))
        (folder / "metrics.jsonl").touch()

    def append(self, line):
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def train(self, intervals):
        for _ in range(intervals):
            self.step += 10
            loss = self.shift + 2 * math.exp(-self.step / 200) + 0.05 * math.sin(self.step)
            line = {"step": self.step, "wall_time": self.step / 4, "loss": loss, "loss_mean": loss + 0.01,
                    "grad_norm": 0.5 + 0.1 * math.cos(self.step), "learning_rate": 1e-3 * (1 - self.step / 2000),
                    "tokens": 4096, "tokens_per_second": 18000 + 500 * math.sin(self.step), "flops_per_second": 9e10,
                    "memory": 6.1e7, "memory_libraries": 2e7, "memory_planned": 5e7,
                    "seconds": {"step": 0.25, "data": 0.01, "forward_backward": 0.2, "reduction": 0.01, "optimizer": 0.03},
                    "ranks": 3}
            for i, host in enumerate(HOSTS):
                line[f"system/{host}/cpu_percent"] = 80 + i + math.sin(self.step)
                line[f"system/{host}/memory_bytes"] = (20 + i) * 1e9
            for i, name in enumerate(("min", "median", "max")):
                line[f"ranks/step_seconds/{name}"] = 0.24 + 0.01 * i
            self.append(line)
        with open(self.folder / "log.txt", "a", encoding="utf-8") as file:
            file.write(f"step {self.step}/1000  loss {loss:.4f}\n")

    def evaluate(self):
        self.append({"step": self.step, "wall_time": self.step / 4, "validation_loss": self.shift + 0.3, "perplexity": 3.5,
                     "validation_tokens": 1000, "best": True, "seconds": 1.5})
        self.append({"step": self.step, "wall_time": self.step / 4, "prompt": "One day ",
                     "sample": "a <b>small</b> fox\nfound\u00e9 a stone & was happy."})

    def report_ranks(self):
        for rank, host in enumerate(HOSTS):
            status = {"rank": rank, "host": host, "pid": 1, "step": self.step, "section": "step", "idle": 0.1,
                      "in_file_call": False, "collective": "all-gather", "sequence": 12, "bytes": 1000,
                      "in_collective": rank == 2, "since": 2, "waits_for_writer": False, "waits_for_device": False,
                      "writer_active": False, "writer_idle": 0, "beat": 1, "job": 1, "started": 1, "pid_namespace": "1"}
            (self.folder / "status" / f"rank-{rank:05}").write_text(json.dumps(status).ljust(767) + "\n")


@contextlib.contextmanager
def serve(llmtool, runs, *options):
    port = () if "--port" in options else ("--port", "0")
    server = subprocess.Popen([llmtool, "serve", str(runs), *port, *options], stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip(), server
    finally:
        server.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        require(server.wait(10) == 0, "SIGTERM ends the server with exit code 0")
        require(time.monotonic() - begin < 1.5, "SIGTERM ends the server within a second")


def open_browser(scheme):
    from selenium import webdriver
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    return driver


def set_width(driver, width, height):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
    time.sleep(0.4)


def text_of(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0])?.textContent || ''", selector)


def points(driver, key):
    """Points of a chart's lines that have a value."""
    return driver.execute_script(
        "const u = charts.get(arguments[0])?.u; if (!u) return 0;"
        "return u.data.slice(1).flatMap((c) => c.filter((v) => v !== null && v !== undefined)).length", key)


def ink(driver, key):
    """Pixels of a chart's canvas that are not transparent."""
    return driver.execute_script(
        "const c = charts.get(arguments[0]).u.ctx.canvas;"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0 ? 1 : 0; return n", key)


def check_no_complaints(driver):
    complaints = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    require(not complaints, f"the browser's console has no errors: {complaints}")


def check_curves(driver, run):
    """They appear, and move when the run goes on."""
    eventually(lambda: points(driver, "loss") == 31, "the loss appears, with its evaluation")
    require(ink(driver, "loss") > 1000, "the curve is drawn")
    for key in ("learning_rate", "grad_norm", "tokens_per_second", "seconds", "system/cpu_percent", "ranks/step_seconds"):
        require(points(driver, key) >= 30, f"the chart {key} appears")
    before, picture = text_of(driver, "#tiles dd"), driver.execute_script("return charts.get('loss').u.ctx.canvas.toDataURL()")
    require(before == "300 / 1,000", f"the step is said: {before}")
    run.train(5)
    run.report_ranks()
    eventually(lambda: points(driver, "loss") == 36, "the loss moves on")
    eventually(lambda: text_of(driver, "#tiles dd") == "350 / 1,000", "the step moves on")
    require(picture != driver.execute_script("return charts.get('loss').u.ctx.canvas.toDataURL()"), "the picture moves on")
    require(abs(driver.execute_script("return byId('progress').value") - 0.35) < 1e-9, "the bar moves on")
    eventually(lambda: "step 350" in text_of(driver, "#ranks"), "the state of ranks moves on")
    require("node003" in text_of(driver, "#nodes"), "nodes are listed")
    require("a <b>small</b> fox" in text_of(driver, "#samples"), "samples are text, not markup")
    require("loss" in text_of(driver, "#log") and "step 350/1000" in text_of(driver, "#log"), "the log is shown")


def check_overlay(driver):
    driver.execute_script("document.querySelectorAll('#run-list input')[1].click()")
    eventually(lambda: driver.execute_script("return charts.get('loss').u.data.length") == 5, "two runs in a chart")
    eventually(lambda: points(driver, "loss") == 36 + 41, "the other run's values")
    require(driver.execute_script("return decodeURIComponent(location.hash)") == "#alpha,beta", "the choice is in the address")
    driver.execute_script("document.querySelectorAll('#run-list input')[1].click()")
    eventually(lambda: points(driver, "loss") == 36, "one run again")
    for table in ("#nodes", "#ranks"):
        eventually(lambda: "node003" in text_of(driver, table), f"the table {table} is there again")
    driver.execute_script("location.hash = 'beta'")
    eventually(lambda: points(driver, "loss") == 41, "an address with another run shows that one")
    driver.execute_script("location.hash = 'alpha'")
    eventually(lambda: points(driver, "loss") == 36, "and the first one again")


def check_disturbed_run(driver, run):
    """The run rolls back and resumes, is truncated, and deleted."""
    run.append({"resumed_from_step": 200, "wall_time": 50, "ranks": 2})
    run.step = 200
    eventually(lambda: points(driver, "loss") == 20, "a resume takes later values away")
    run.train(3)
    eventually(lambda: points(driver, "loss") == 23, "the resumed run goes on")
    require(driver.execute_script("return marks.get(chosen[0]).length") == 1, "the resume is marked")
    metrics = run.folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:4000])
    eventually(lambda: 0 < points(driver, "loss") < 10, "a truncated file is read anew")
    shutil.rmtree(run.folder)
    eventually(lambda: "no such folder" in text_of(driver, "#run-problem"), "a deleted run is said")
    require("alpha" in text_of(driver, "#run-name"), "the page is still there")


def check_reconnection(llmtool, folder):
    """The page finds a new server at the same port, for which the runs have other numbers."""
    driver = open_browser("light")
    try:
        with serve(llmtool, folder) as (url, _):
            driver.get(url + "#beta")
            eventually(lambda: points(driver, "loss") == 41, "the run that the address names is chosen")
        eventually(lambda: "lost" in text_of(driver, "#link"), "the lost connection is said")
        Run(folder / "aa", 1.0).train(12)
        with serve(llmtool, folder, "--port", url.split(":")[2].strip("/")):
            eventually(lambda: text_of(driver, "#link") == "live", "the connection is back")
            eventually(lambda: text_of(driver, "#run-list").startswith("aa"), "the new run is in the list")
            require(text_of(driver, "#run-name") == "beta", "the chosen run is the same")
            eventually(lambda: points(driver, "loss") == 41, "its values are there")
    finally:
        driver.quit()


def check_axe(driver, axe, where):
    """axe finds nothing; and, as a control, it does find faint text and a picture without a label."""
    driver.execute_script(axe)
    run = ("const done = arguments[0]; axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', "
           "'wcag22aa', 'best-practice']}).then((r) => done(r.violations.map((v) => "
           "[v.id, v.nodes.map((n) => n.target.join(' ') + ' ' + n.failureSummary)])))")
    found = driver.execute_async_script(run)
    require(not found, f"axe, {where}: {json.dumps(found, indent=1)}")
    driver.execute_script("const p = document.createElement('p'); p.id = 'control'; p.textContent = 'faint';"
                          "p.style.color = '#888'; p.style.backgroundColor = '#999'; p.append(new Image());"
                          "document.querySelector('main').append(p)")
    control = [name for name, _ in driver.execute_async_script(run)]
    driver.execute_script("document.getElementById('control').remove()")
    require("color-contrast" in control and "image-alt" in control, f"axe sees what is wrong: {control}")


def check_looks(llmtool, folder, axe, screenshots):
    with serve(llmtool, folder) as (url, _):
        for scheme in ("light", "dark"):
            driver = open_browser(scheme)
            try:
                driver.get(url)
                eventually(lambda: points(driver, "loss") > 30, "the loss appears")
                require(driver.execute_script("return charts.get('loss').u.width") > 250, "charts have their width from the start")
                for name, (width, height) in WIDTHS.items():
                    set_width(driver, width, height)
                    inside = driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
                    require(inside, f"{name}, {scheme}: nothing is wider than the window")
                    narrow = driver.execute_script(
                        "return [...charts.values()].filter((c) => Math.abs(c.u.width - c.figure.clientWidth) > 1).map((c) => c.key)")
                    require(not narrow, f"{name}, {scheme}: charts are as wide as their place: {narrow}")
                    if axe:
                        check_axe(driver, axe, f"{name}, {scheme}")
                    if screenshots:
                        size = driver.execute_script("return document.documentElement.scrollHeight")
                        set_width(driver, width, size)
                        driver.save_screenshot(str(screenshots / f"{name}_{scheme}.png"))
                check_no_complaints(driver)
            finally:
                driver.quit()


def check_behaviour(llmtool, folder, run):
    with serve(llmtool, folder, "--token") as (url, _):
        require("?token=" in url, f"the address has a token: {url}")
        driver = open_browser("light")
        try:
            driver.get(url + "#100%")  # not the encoding of a name
            check_curves(driver, run)
            check_overlay(driver)
            check_disturbed_run(driver, run)
            check_no_complaints(driver)
            driver.execute_script("console.error('control')")
            control = [e for e in driver.get_log("browser") if "control" in e["message"]]
            require(control, "errors of the console are seen")
        finally:
            driver.quit()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llmtool")
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    if not (shutil.which("chromium") or shutil.which("chromium-browser")) or not shutil.which("chromedriver"):
        skip("chromium and chromedriver are not installed")
    if not importlib.util.find_spec("selenium"):
        skip(f"{sys.executable} has no selenium")
    package = importlib.util.find_spec("axe_playwright_python")
    axe = (pathlib.Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8") if package else None
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alpha, beta = Run(folder / "alpha", 0.5), Run(folder / "beta", 0.7)
        for run, intervals in ((alpha, 30), (beta, 40)):
            run.train(intervals)
            run.evaluate()
            run.report_ranks()
        if arguments.screenshots:
            arguments.screenshots.mkdir(parents=True, exist_ok=True)
        check_looks(arguments.llmtool, folder, axe, arguments.screenshots)
        check_reconnection(arguments.llmtool, folder)
        shutil.rmtree(folder / "aa")
        check_behaviour(arguments.llmtool, folder, alpha)
    print("the dashboard is as it should be" + ("" if axe else "; not checked by axe: axe-playwright-python is missing"))


if __name__ == "__main__":
    main()
