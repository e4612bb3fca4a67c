"use strict";
// Draws the charts of a report from the JSON in the page, sorts its tables, and draws parallel coordinates.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const svgSpace = document.querySelector("svg").namespaceURI;
  const DASHES = [[], [9, 4], [2, 3], [10, 3, 2, 3]];
  const COLOURS = 8;
  const WIDE_COLUMNS = 8; // of a table that is too wide for paper
  const MARKS = {resume: "R", rollback: "B", bad: "\u00d7", best: "\u2605"};
  let byTime = false;
  let printing = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (i) => css("--line" + (i % COLOURS));

  function svg(parent, name, attributes, text) {
    const element = parent.appendChild(document.createElementNS(svgSpace, name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // ---- numbers ----

  function scaled(value, base, units) {
    let i = 0;
    for (; Math.abs(value) >= base && i + 1 < units.length; ++i) value /= base;
    return Number(value.toPrecision(3)) + units[i];
  }

  function duration(seconds) {
    if (seconds < 1 && seconds > 0) return Number((seconds * 1000).toPrecision(3)) + " ms";
    if (seconds < 120) return Number(seconds.toPrecision(3)) + " s";
    if (seconds < 7200) return Number((seconds / 60).toPrecision(3)) + " min";
    return Number((seconds / 3600).toPrecision(3)) + " h";
  }

  function format(value, unit) {
    if (value === null || value === undefined) return "\u2013";
    if (unit === "bytes") return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
    if (unit === "seconds") return duration(value);
    if (Math.abs(value) >= 10000) return scaled(value, 1000, ["", "k", "M", "G", "T", "P"]);
    if (value !== 0 && Math.abs(value) < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(4)));
  }

  // ---- curves ----

  /** Seconds of training at a step, by interpolation between those that the run has noted. */
  function timeAt(run, step) {
    const [steps, seconds] = run.time;
    let high = steps.findIndex((s) => s >= step);
    if (high < 0) return seconds.length ? seconds[seconds.length - 1] : step;
    const s0 = high ? steps[high - 1] : 0;
    const t0 = high ? seconds[high - 1] : 0;
    return steps[high] === s0 ? seconds[high] : t0 + ((seconds[high] - t0) * (step - s0)) / (steps[high] - s0);
  }

  function curveOf(line) {
    const run = data.runs[line[0]];
    const [steps, values] = run.curves[line[1]];
    // uPlot labels no axis with larger numbers.
    const shown = values.map((v) => (v === null ? null : Math.max(-1e15, Math.min(1e15, v))));
    return [byTime ? steps.map((step) => timeAt(run, step)) : steps, shown];
  }

  function axisSize(plot, values, index, cycle) {
    const axis = plot.axes[index];
    if (cycle > 1) return axis._size;
    const longest = (values || []).reduce((a, b) => (b && b.length > a.length ? b : a), "");
    plot.ctx.font = axis.font[0];
    return Math.ceil(axis.ticks.size + axis.gap + plot.ctx.measureText(longest).width / devicePixelRatio + 4);
  }

  /** Labels a logarithmic axis at powers of ten, or where it has few of them at 1, 2 and 5 times these. */
  function logarithmicLabels(plot, splits) {
    const digit = (v) => Math.round(v / 10 ** Math.floor(Math.log10(v) + 1e-9));
    let kept = splits.filter((v) => digit(v) === 1);
    if (kept.length < 3) kept = splits.filter((v) => [1, 2, 5].includes(digit(v)));
    const stride = Math.ceil(kept.length / 6);
    const shown = new Set(kept.filter((_, i) => i % stride === 0));
    return splits.map((v) => (shown.has(v) ? v : null));
  }

  /** Marks what happened: a line over the plot and a sign, so that neither needs its colour. */
  function drawMarks(plot, runs) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.font = `bold ${12 * devicePixelRatio}px sans-serif`;
    ctx.textAlign = "center";
    for (const index of runs) {
      const run = data.runs[index];
      ctx.strokeStyle = ctx.fillStyle = data.runs.length > 1 ? colour(index) : css("--mark");
      for (const mark of run.marks) {
        const x = Math.round(plot.valToPos(byTime ? timeAt(run, mark.step) : mark.step, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        const bad = mark.kind === "bad";
        ctx.setLineDash(bad ? [2, 4] : [6, 4]);
        ctx.globalAlpha = bad || mark.kind === "best" ? 0.35 : 0.8;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top + 14 * devicePixelRatio);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.fillText(MARKS[mark.kind], x, bbox.top + 11 * devicePixelRatio);
      }
    }
    ctx.restore();
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.chart = data.charts[Number(figure.dataset.chart)];
      this.area = figure.querySelector(".plot");
      this.hidden = new Set();
      this.logarithmic = this.chart.logarithmic;
      this.button = figure.querySelector("figcaption button");
      const values = this.chart.lines.flatMap((line) => data.runs[line[0]].curves[line[1]][1]);
      if (!values.some((v) => v > 0) || values.some((v) => v !== null && v <= 0)) {
        this.logarithmic = false;
        this.button.disabled = true;
        this.button.title = "not possible: some values are zero or negative";
      }
      this.button.addEventListener("click", () => {
        this.logarithmic = !this.logarithmic;
        this.draw();
      });
      this.makeLegend();
      this.draw();
      new ResizeObserver(() => this.plot && !printing && this.plot.setSize(this.size())).observe(this.area);
    }

    size() {
      return {width: printing ? 330 : Math.max(this.area.clientWidth, 200), height: 220};
    }

    makeLegend() {
      const list = this.figure.querySelector(".legend");
      this.entries = this.chart.lines.map((line, i) => {
        const button = list.appendChild(document.createElement("li")).appendChild(document.createElement("button"));
        const swatch = svg(button, "svg", {class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true"});
        const stroke = svg(swatch, "line", {x1: 0, y1: 5, x2: 26, y2: 5, "stroke-width": 3,
          "stroke-dasharray": DASHES[i % DASHES.length].join(" ")});
        button.appendChild(document.createElement("span")).textContent = line[2];
        const output = button.appendChild(document.createElement("output"));
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.addEventListener("click", () => {
          const shown = this.hidden.delete(i) || !this.hidden.add(i);
          button.setAttribute("aria-pressed", String(shown));
          this.plot.setSeries(i + 1, {show: shown});
        });
        return {stroke, output};
      });
    }

    showValues(plot) {
      this.entries.forEach((entry, i) => {
        const index = plot.cursor.idxs ? plot.cursor.idxs[i + 1] : null;
        const values = data.runs[this.chart.lines[i][0]].curves[this.chart.lines[i][1]][1];
        const value = index === null || index === undefined ? values[values.length - 1] : plot.data[i + 1][index];
        if (value !== undefined) entry.output.textContent = format(value, this.chart.unit);
      });
    }

    draw() {
      if (this.plot) this.plot.destroy();
      const {chart} = this;
      this.button.setAttribute("aria-pressed", String(this.logarithmic));
      const axis = {stroke: css("--faint"), font: "12px sans-serif", grid: {stroke: css("--grid"), width: 1},
        ticks: {stroke: css("--grid"), width: 1}};
      const series = chart.lines.map((line, i) => ({
        label: line[2], stroke: colour(i), width: 1.75, dash: DASHES[i % DASHES.length], show: !this.hidden.has(i),
        points: {show: data.runs[line[0]].curves[line[1]][0].length <= 40, size: 5, fill: colour(i)},
      }));
      this.entries.forEach((entry, i) => entry.stroke.setAttribute("stroke", colour(i)));
      const runs = [...new Set(chart.lines.map((line) => line[0]))];
      const filter = logarithmicLabels;
      const options = {
        ...this.size(), legend: {show: false}, cursor: {sync: {key: "report"}, points: {size: 7}},
        scales: {x: {time: false}, y: {distr: this.logarithmic ? 3 : 1}},
        axes: [
          {...axis, space: 60, size: 34, values: (_, splits) => splits.map((v) => (byTime ? duration(v) : format(v, "")))},
          {...axis, size: axisSize, ...(this.logarithmic ? {filter, grid: {...axis.grid, filter}, ticks: {...axis.ticks, filter}} : {}),
            values: (_, splits) => splits.map((v) => (v === null ? null : format(v, chart.unit)))},
        ],
        series: [{}, ...series],
        hooks: {draw: [(plot) => drawMarks(plot, runs)], setCursor: [(plot) => this.showValues(plot)]},
      };
      this.plot = new uPlot(options, uPlot.join(chart.lines.map(curveOf)), this.area);
      this.showValues(this.plot);
    }
  }

  const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => new Chart(figure));
  const drawAll = () => charts.forEach((chart) => chart.draw());

  for (const button of document.querySelectorAll("button[data-axis]")) {
    button.addEventListener("click", () => {
      byTime = button.dataset.axis === "time";
      for (const other of document.querySelectorAll("button[data-axis]")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      drawAll();
    });
  }

  // ---- tables ----

  const numberOf = (text) => (text.trim() === "" ? NaN : Number(text));

  function compareCells(a, b) {
    const x = numberOf(a), y = numberOf(b);
    if (!isNaN(x) && !isNaN(y)) return x - y;
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
    return a < b ? -1 : a > b ? 1 : 0;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const headers = [...table.tHead.rows[0].cells];
    if (headers.length > WIDE_COLUMNS) table.classList.add("wide");
    for (const row of body.rows) [...row.cells].forEach((cell, i) => { cell.dataset.name = headers[i].textContent; });
    headers.forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => {
        const up = header.getAttribute("aria-sort") !== "ascending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[column].dataset.value;
        const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compareCells(value(a), value(b)));
        body.append(...rows);
      });
    });
  }

  /** A line for each run over one axis for each column; a text column has its different texts in order. */
  function drawParallel(canvas, table) {
    const columns = [...table.tHead.rows[0].cells].map((cell, i) => ({name: cell.textContent, i, kind: cell.dataset.kind}))
      .filter((column) => column.kind);
    const rows = [...table.tBodies[0].rows].sort((a, b) => a.dataset.run - b.dataset.run);
    const width = Math.max(canvas.parentNode.clientWidth, columns.length * 135), height = 320;
    const top = 46, bottom = height - 30, left = 70, right = width - 80;
    canvas.replaceChildren();
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    canvas.style.width = printing ? "100%" : width + "px";
    const places = columns.map((column, k) => {
      const texts = rows.map((row) => row.cells[column.i].dataset.value);
      const numbers = texts.map(numberOf);
      const numeric = numbers.some((v) => !isNaN(v)) && numbers.every((v, r) => !isNaN(v) || texts[r] === "");
      const distinct = [...new Set(texts)].sort(compareCells);
      const low = Math.min(...numbers.filter((v) => !isNaN(v))), high = Math.max(...numbers.filter((v) => !isNaN(v)));
      const log = numeric && low > 0 && high / low > 50;
      const scale = (v) => (log ? Math.log(v) : v);
      const at = (text) => {
        const span = numeric ? scale(high) - scale(low) : distinct.length - 1;
        if (numeric && isNaN(numberOf(text))) return null;
        const place = numeric ? scale(numberOf(text)) - scale(low) : distinct.indexOf(text);
        return bottom - (span > 0 ? place / span : 0.5) * (bottom - top);
      };
      const x = columns.length > 1 ? left + (k * (right - left)) / (columns.length - 1) : width / 2;
      svg(canvas, "line", {x1: x, y1: top, x2: x, y2: bottom});
      svg(canvas, "text", {x: k === 0 ? 5 : k + 1 === columns.length ? width - 5 : x, y: 16 + 15 * (k % 2), "font-weight": "bold",
        "text-anchor": k === 0 ? "start" : k + 1 === columns.length ? "end" : "middle"}, column.name.slice(0, 30));
      const ends = numeric ? (high > low ? [low, high] : [low]).map((v) => [String(v), format(v, "")])
        : distinct.slice(0, 8).map((text) => [text, text.slice(0, 14) || "none"]);
      for (const [text, shown] of ends) svg(canvas, "text", {x: x + 5, y: at(text) + 4}, shown);
      return rows.map((_, r) => [x, at(texts[r])]);
    });
    rows.forEach((row, r) => {
      const points = places.map((place) => place[r]).filter((point) => point[1] !== null);
      const index = Number(row.dataset.run);
      const line = svg(canvas, "polyline", {points: points.map((p) => p.join(",")).join(" "), stroke: colour(index),
        "stroke-dasharray": DASHES[index % DASHES.length].join(" ")});
      svg(line, "title", {}, row.cells[0].textContent);
      canvas.prepend(line); // under the texts
    });
  }

  const canvas = document.querySelector("svg.parallel");
  const drawCanvas = () => canvas && drawParallel(canvas, document.querySelector("table.runs"));
  drawCanvas();
  if (canvas) new ResizeObserver(() => !printing && drawCanvas()).observe(canvas.parentNode);

  // ---- theme and print ----

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawAll(); drawCanvas(); });
  let closed = [];
  function setPrinting(on) {
    if (on === printing) return;
    printing = on;
    document.documentElement.classList.toggle("printing", on);
    if (on) closed = [...document.querySelectorAll("main details:not([open]):not(.long)")];
    closed.forEach((details) => { details.open = on; });
    drawAll();
    drawCanvas();
  }
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
})();
