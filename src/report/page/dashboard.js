// Page of the dashboard. Server-sent events bring rows of the list of runs, values of the chosen runs, and the log,
// samples and ranks of the first of them (src/report/dashboard/run_board.hpp).
'use strict';

const query = new URLSearchParams(location.search);
const maxPoints = 8000;  // of a series; older points are thinned beyond it
const maxLines = 8;      // of a chart

const rows = new Map();    // run id -> row of the list
const values = new Map();  // run id -> Map(metric -> {steps, values})
const marks = new Map();   // run id -> resumes and rollbacks
const charts = new Map();  // key -> Chart
let chosen = [];           // run ids, the first one in detail
let detail = null;
let source = null;
let epoch = null;
let drawing = false;

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- numbers ----

function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '-';
  const size = Math.abs(value);
  if (size === 0) return '0';
  for (const [unit, name] of [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
    if (size >= unit) return String(Number((value / (unit === 1e4 ? 1e3 : unit)).toPrecision(4))) + name;
  }
  if (size < 5e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(5)));
}

function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return '-';
  const s = Math.round(seconds);
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([unit]) => s >= unit);
  if (first < 0) return '0 s';
  return parts.slice(first, first + 2)
      .map(([unit, name], i) => [Math.floor((i === 0 ? s : s % parts[first][0]) / unit), name])
      .filter(([count], i) => i === 0 || count > 0)
      .map(([count, name]) => `${count} ${name}`).join(' ');
}

const count = (n) => n.toLocaleString('en-US');

// ---- the connection ----

function showLink(state, text) {
  byId('link').dataset.state = state;
  setText(byId('link'), text);
}

function connect() {
  if (source) source.close();
  const parameters = new URLSearchParams();
  if (query.has('token')) parameters.set('token', query.get('token'));
  if (chosen.length > 0) parameters.set('runs', chosen.join(','));
  const own = new EventSource('events?' + parameters);
  source = own;
  own.onopen = () => showLink('live', 'live');
  own.onerror = () => {
    showLink('lost', 'connection lost, trying again');
    if (own.readyState !== EventSource.CLOSED || own !== source) return;
    setTimeout(() => { if (own === source) connect(); }, 3000);
  };
  own.addEventListener('hello', (event) => onHello(event.data));
  own.addEventListener('runs', (event) => onRows(JSON.parse(event.data)));
  own.addEventListener('series', (event) => onSeries(JSON.parse(event.data)));
  own.addEventListener('detail', (event) => {
    detail = JSON.parse(event.data);
    drawSoon();
  });
}

// Numbers of runs belong to a server: another one may give them to other runs.
function onHello(name) {
  if (epoch !== null && epoch !== name) {
    for (const map of [rows, values, marks]) map.clear();
    chosen = [];
    detail = null;
    epoch = null;
    connect();
    return;
  }
  epoch = name;
}

// Names of runs in the address, of which a reader may have changed any part.
function namedRuns() {
  try {
    return location.hash.slice(1).split(',').filter(Boolean).map(decodeURIComponent);
  } catch {
    return [];
  }
}

function onRows(changed) {
  for (const row of changed) rows.set(row.id, row);
  if (chosen.length === 0 && rows.size > 0) {
    const named = namedRuns();
    const all = [...rows.values()];
    const found = named.map((name) => all.find((row) => row.name === name)).filter(Boolean);
    const first = found.length > 0 ? found : [all.find((row) => row.state === 'running') || all[0]];
    choose(first.map((row) => row.id));
  }
  drawSoon();
}

function onSeries(event) {
  if (event.reset || !values.has(event.run)) values.set(event.run, new Map());
  const known = values.get(event.run);
  for (const [name, [steps, points]] of Object.entries(event.series)) {
    if (!known.has(name)) known.set(name, {steps: [], values: []});
    const series = known.get(name);
    for (let i = 0; i < steps.length; ++i) {
      if (series.steps.length > 0 && steps[i] <= series.steps[series.steps.length - 1]) continue;
      series.steps.push(steps[i]);
      series.values.push(points[i]);
    }
    if (series.steps.length > maxPoints) {
      series.steps = series.steps.filter((_, i) => i % 2 === 0);
      series.values = series.values.filter((_, i) => i % 2 === 0);
    }
  }
  marks.set(event.run, event.marks);
  drawSoon();
}

function choose(ids) {
  chosen = ids;
  detail = null;
  for (const id of values.keys()) if (!ids.includes(id)) values.delete(id);
  const names = ids.map((id) => encodeURIComponent(rows.get(id).name)).join(',');
  history.replaceState(null, '', location.pathname + location.search + '#' + names);
  connect();
  drawSoon();
}

// ---- the list of runs, and the summary of the first chosen one ----

const colour = (i) => getComputedStyle(document.documentElement).getPropertyValue(`--line-${i % maxLines}`).trim();

function makeRow(id) {
  const item = element('li');
  const box = element('input');
  box.type = 'checkbox';
  box.addEventListener('change', () => {
    const rest = chosen.filter((other) => other !== id);
    choose(box.checked ? [...rest, id] : rest.length > 0 ? rest : [id]);
  });
  const button = element('button');
  button.type = 'button';
  button.addEventListener('click', () => choose([id, ...chosen.filter((other) => other !== id && chosen.length > 1)]));
  const name = element('span', undefined, 'name');
  name.append(element('span', undefined, 'swatch'), element('span'));
  button.append(name, element('span', undefined, 'where'));
  item.append(box, button);
  return item;
}

function drawList() {
  const list = byId('run-list');
  byId('runs').hidden = rows.size < 2;
  for (const row of rows.values()) {
    let item = list.querySelector(`li[data-id="${row.id}"]`);
    if (!item) {
      item = makeRow(row.id);
      item.dataset.id = row.id;
      list.append(item);
    }
    const at = chosen.indexOf(row.id);
    const [box, button] = item.children;
    item.classList.toggle('focus', at === 0);
    box.checked = at >= 0;
    box.setAttribute('aria-label', `compare ${row.name}`);
    button.setAttribute('aria-pressed', String(at === 0));
    const [swatch, name] = button.firstChild.children;
    swatch.hidden = at < 0 || chosen.length < 2;
    swatch.style.color = at >= 0 ? colour(at) : '';
    setText(name, row.name);
    setText(button.lastChild, `${row.state}, step ${count(row.step)}` +
        (row.loss === null ? '' : `, loss ${compact(row.loss)}`));
  }
  if (list.children.length > rows.size) list.replaceChildren();  // another server's
}

function drawSummary(row) {
  setText(byId('run-name'), row.name);
  byId('run-name').title = row.folder;
  setText(byId('run-state'), row.state === 'problem' ? 'cannot be read' : row.state);
  byId('run-state').dataset.state = row.state;
  setText(byId('run-problem'), row.problem);
  byId('run-problem').hidden = row.problem === '';
  const share = row.max_steps > 0 ? Math.min(1, row.step / row.max_steps) : 0;
  byId('progress').value = share;
  setText(byId('percent'), row.max_steps > 0 ? `${(100 * share).toFixed(1)} %` : '');
  document.title = `${row.max_steps > 0 ? Math.floor(100 * share) + ' % ' : ''}${row.name} - llmtrain`;
  const tiles = [
    ['Step', row.max_steps > 0 ? `${count(row.step)} / ${count(row.max_steps)}` : count(row.step)],
    ['Time left', duration(row.time_left)],
    ['Time so far', duration(row.wall_time)],
    ['Loss', compact(row.loss)],
    ['Validation loss', compact(row.validation_loss)],
    ['Best validation loss', compact(row.best_validation_loss)],
    ['Tokens per second', compact(row.tokens_per_second)],
  ];
  const list = byId('tiles');
  if (list.children.length === 0) {
    for (const [name] of tiles) {
      const tile = element('div');
      tile.append(element('dt', name), element('dd'));
      list.append(tile);
    }
  }
  tiles.forEach(([, text], i) => setText(list.children[i].lastChild, text));
}

// ---- curves ----

const titles = {
  loss: 'Loss', learning_rate: 'Learning rate', grad_norm: 'Gradient norm', tokens_per_second: 'Tokens per second',
  flops_per_second: 'FLOP per second', memory: 'Memory of rank 0, bytes', seconds: 'Seconds of a step, by phase',
  perplexity: 'Perplexity', token_accuracy: 'Accuracy over tokens',
};
const order = ['loss', 'learning_rate', 'grad_norm', 'tokens_per_second', 'seconds', 'memory'];
const hidden = new Set(['wall_time', 'ranks', 'tokens', 'validation_tokens', 'evaluation_seconds', 'memory_libraries']);

const statistics = ['min', 'median', 'max'];
const byStatistic = (a, b) => statistics.indexOf(a) - statistics.indexOf(b);

// Chart and line of a metric, or null: [key, label].
function placeOf(name, known) {
  if (hidden.has(name) || (name === 'loss' && known.has('loss_mean'))) return null;
  if (name === 'loss_mean' || name === 'loss') return ['loss', 'training'];
  if (name === 'memory') return ['memory', 'in use'];
  if (name === 'memory_planned') return ['memory', 'planned'];
  if (name.startsWith('validation_')) return [name.slice(11), 'validation'];
  const parts = name.split('/');
  if (parts[0] === 'seconds') return ['seconds', parts[1].replaceAll('_', ' ')];
  if (parts[0] === 'ranks' && parts.length > 2) return ['ranks/' + parts.slice(1, -1).join('/'), parts.at(-1)];
  if (parts[0] === 'system' && parts.length > 2) return ['system/' + parts.slice(2).join('/'), parts[1]];
  return [name, known.has('validation_' + name) ? 'training' : ''];
}

function titleOf(key) {
  if (titles[key]) return titles[key];
  const parts = key.split('/');
  const name = (parts.length > 1 ? parts.slice(1).join(' ') : key).replaceAll('_', ' ');
  if (parts[0] === 'ranks') return `Over ranks: ${name}`;
  if (parts[0] === 'system') return `Nodes: ${name}`;
  return key.replaceAll('_', ' ');
}

// Charts with the lines that the chosen runs have: Map(key -> [{id, name, label}]).
function wantedCharts() {
  const wanted = new Map();
  chosen.forEach((id, at) => {
    const known = values.get(id) || new Map();
    for (const [name, series] of known) {
      const place = placeOf(name, known);
      if (!place || !series.values.some((v) => v !== null && v !== 0)) continue;
      const [key, line] = place;
      if (at > 0 && /^(system|ranks|seconds|memory)/.test(key)) continue;  // of the first run alone
      const label = chosen.length > 1 ? `${rows.get(id).name}${line ? ' ' + line : ''}` : line;
      if (!wanted.has(key)) wanted.set(key, []);
      if (wanted.get(key).length < maxLines) wanted.get(key).push({id, name, label, run: at});
    }
  });
  for (const [key, lines] of wanted) if (key.startsWith('ranks/')) lines.sort((a, b) => byStatistic(a.label, b.label));
  return wanted;
}

const rank = (key) => {
  const at = order.indexOf(key);
  if (at >= 0) return at;
  return key.startsWith('system/') ? 300 : key.startsWith('ranks/') ? 200 : 100;
};

class Chart {
  constructor(key) {
    this.key = key;
    this.signature = '';
    this.zoomed = false;
    this.figure = element('figure');
    this.figure.dataset.key = key;
    const caption = element('figcaption');
    this.legend = element('ul');
    caption.append(element('strong', titleOf(key)), this.legend);
    this.plot = element('div', undefined, 'plot');
    this.plot.setAttribute('role', 'img');
    this.figure.append(caption, this.plot);
  }

  update(lines) {
    this.lines = lines;
    const signature = JSON.stringify(lines.map((line) => [line.id, line.name, line.label]));
    const data = this.data();
    if (signature !== this.signature) {
      this.signature = signature;
      this.make(data);
    } else {
      const {min, max} = this.u.scales.x;
      this.u.setData(data, !this.zoomed);
      if (this.zoomed) this.u.setScale('x', {min, max});
    }
    this.showValues(null);
  }

  data() {
    return uPlot.join(this.lines.map(({id, name}) => {
      const series = values.get(id).get(name);
      return [series.steps, series.values];
    }));
  }

  strokeOf(index) {
    const line = this.lines[index];
    return colour(chosen.length > 1 ? line.run : index);
  }

  make(data) {
    if (this.u) this.u.destroy();
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const axis = {stroke: of('--muted'), grid: {stroke: of('--grid'), width: 1}, ticks: {stroke: of('--grid'), width: 1}};
    const dashed = this.lines.map((line, i) =>
      chosen.length > 1 && this.lines.findIndex((other) => other.run === line.run) !== i);
    this.u = new uPlot({
      width: Math.max(this.plot.clientWidth, 200), height: 210, legend: {show: false},
      cursor: {sync: {key: 'steps'}, y: false, drag: {x: true, y: false}},
      scales: {x: {time: false}},
      axes: [{...axis, values: (_, ticks) => ticks.map(compact)}, {...axis, size: 62, values: (_, ticks) => ticks.map(compact)}],
      series: [{}, ...this.lines.map((_, i) => ({
        stroke: this.strokeOf(i), width: 1.6, spanGaps: true,
        dash: dashed[i] ? [6, 4] : undefined,
        points: {show: (u, s) => u.data[s].filter((v) => v !== null && v !== undefined).length < 30, size: 5, fill: of('--panel')},
      }))],
      hooks: {
        setCursor: [(u) => this.showValues(u.cursor.idx)],
        setSelect: [(u) => { if (u.select.width > 0) this.zoomed = true; }],
        draw: [(u) => this.drawMarks(u, of('--muted'))],
      },
    }, data, this.plot);
    this.u.over.addEventListener('dblclick', () => { this.zoomed = false; });
    this.legend.replaceChildren(...this.lines.map((line, i) => {
      const item = element('li');
      const swatch = element('span', undefined, 'swatch');
      swatch.style.color = this.strokeOf(i);
      swatch.classList.toggle('dashed', dashed[i]);
      swatch.hidden = this.lines.length < 2;
      item.append(swatch, element('span', line.label ? line.label + ' ' : ''), element('span', '', 'value'));
      return item;
    }));
  }

  // Values at a point of the data, or the last ones.
  showValues(index) {
    if (!this.u) return;
    const texts = this.lines.map((line, i) => {
      const column = this.u.data[i + 1];
      const at = index ?? column.findLastIndex((v) => v !== null && v !== undefined);
      return compact(column[at]);
    });
    texts.forEach((text, i) => setText(this.legend.children[i].lastChild, text));
    if (index === null || index === undefined) {
      const said = this.lines.map((line, i) => `${line.label} ${texts[i]}`.trim()).join(', ');
      this.plot.setAttribute('aria-label', `${titleOf(this.key)} over steps; last values: ${said}`);
    }
  }

  // Resumes and rollbacks of the first run.
  drawMarks(u, stroke) {
    const {left, top, width, height} = u.bbox;
    u.ctx.save();
    u.ctx.strokeStyle = stroke;
    u.ctx.setLineDash([3, 3]);
    for (const mark of marks.get(chosen[0]) || []) {
      const x = u.valToPos(mark.step, 'x', true);
      if (x < left || x > left + width) continue;
      u.ctx.beginPath();
      u.ctx.moveTo(x, top);
      u.ctx.lineTo(x, top + height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.u && width > 0 && width !== this.u.width) this.u.setSize({width, height: 210});
  }

  remove() {
    if (this.u) this.u.destroy();
    this.figure.remove();
  }
}

function drawCharts() {
  const wanted = wantedCharts();
  for (const [key, chart] of charts) {
    if (wanted.has(key)) continue;
    chart.remove();
    charts.delete(key);
  }
  byId('curves').hidden = wanted.size === 0;  // a hidden chart would have no width
  const keys = [...wanted.keys()].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  keys.forEach((key, i) => {
    if (!charts.has(key)) charts.set(key, new Chart(key));
    const chart = charts.get(key);
    if (byId('charts').children[i] !== chart.figure) byId('charts').insertBefore(chart.figure, byId('charts').children[i] || null);
    chart.update(wanted.get(key));
  });
}

// ---- nodes, ranks, samples, log ----

// A table in place of what the node has; nothing if there are no rows. Columns: [title, is a number].
function showTable(node, title, columns, lines) {
  const signature = JSON.stringify([columns, lines]);
  if (node.dataset.signature === signature) return undefined;
  node.dataset.signature = signature;
  if (lines.length === 0) return node.replaceChildren();
  const table = element('table');
  table.append(element('caption', title));
  const head = element('tr');
  for (const [name, number] of columns) {
    const cell = element('th', name, number ? 'number' : '');
    cell.scope = 'col';
    head.append(cell);
  }
  table.append(element('thead'), element('tbody'));
  table.tHead.append(head);
  for (const line of lines) {
    const row = element('tr');
    line.forEach((text, i) => row.append(element('td', text, columns[i][1] ? 'number' : '')));
    table.tBodies[0].append(row);
  }
  const scroll = element('div', undefined, 'scroll');
  scroll.tabIndex = 0;
  scroll.setAttribute('role', 'region');
  scroll.setAttribute('aria-label', title);
  scroll.append(table);
  return node.replaceChildren(scroll);
}

// Last values of metrics "PREFIX/row/column": [columns, Map(row -> Map(column -> value))].
function lastValues(prefix, split) {
  const found = new Map();
  const columns = new Set();
  for (const [name, series] of values.get(chosen[0]) || []) {
    if (!name.startsWith(prefix + '/')) continue;
    const [row, column] = split(name.slice(prefix.length + 1).split('/'));
    if (!row || !column) continue;
    if (!found.has(row)) found.set(row, new Map());
    found.get(row).set(column, series.values.at(-1));
    columns.add(column);
  }
  return [[...columns].sort(byStatistic), found];
}

function drawMachines() {
  const words = (name) => name.replaceAll('_', ' ');
  const [kinds, hosts] = lastValues('system', (parts) => [parts[0], parts.slice(1).join('/')]);
  showTable(byId('nodes'), 'Nodes, at the last log interval', [['node', false], ...kinds.map((k) => [words(k), true])],
      [...hosts].map(([host, cells]) => [host, ...kinds.map((k) => compact(cells.get(k)))]));
  const [measures, skews] = lastValues('ranks', (parts) => [parts.slice(0, -1).join('/'), parts.at(-1)]);
  showTable(byId('skew'), 'Over ranks, at the last log interval', [['value', false], ...measures.map((k) => [words(k), true])],
      [...skews].map(([name, cells]) => [words(name), ...measures.map((k) => compact(cells.get(k)))]));
  const ranks = detail ? detail.ranks : [];
  showTable(byId('ranks'), 'Ranks, now', [['rank', true], ['node', false], ['step', true], ['state', false]],
      ranks.map((r) => [String(r.rank), r.host, count(r.step),
                        r.doing + (r.silent > 0 ? ` (silent for ${r.silent} min)` : '')]));
  byId('machines').hidden = hosts.size + skews.size + ranks.length === 0;
}

function drawSamples() {
  const samples = detail ? [...detail.samples].reverse() : [];
  byId('texts').hidden = samples.length === 0;
  const signature = JSON.stringify(samples);
  if (byId('samples').dataset.signature === signature) return;
  byId('samples').dataset.signature = signature;
  byId('samples').replaceChildren(...samples.map((sample) => {
    const item = element('article', undefined, 'sample');
    const text = element('p');
    text.append(element('span', sample.prompt, 'prompt'), sample.text);
    item.append(element('h3', `Step ${count(sample.step)}`), text);
    return item;
  }));
}

function drawLog() {
  const log = byId('log');
  const lines = detail ? detail.log : [];
  byId('console').hidden = lines.length === 0;
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  setText(log, lines.join('\n'));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function draw() {
  drawing = false;
  if (chosen.length === 0) return;
  drawList();
  drawSummary(rows.get(chosen[0]));
  drawCharts();
  drawMachines();
  drawSamples();
  drawLog();
}

function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

// ---- the window ----

new ResizeObserver(() => { for (const chart of charts.values()) chart.resize(); }).observe(byId('charts'));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const chart of charts.values()) chart.signature = '';  // canvases have the other colours
  drawSoon();
});
// A reader may change the names in the address.
addEventListener('hashchange', () => {
  chosen = [];
  onRows([]);
});
// A browser has few connections to a server: pages that nobody sees give theirs back.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    if (source) source.close();
    source = null;
    showLink('paused', 'paused');
  } else if (!source) {
    connect();
  }
});
connect();
