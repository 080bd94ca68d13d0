"use strict";
// The page of `bimetal reproduce --html`: a table of claims to sort and filter, then every experiment with its figures.
const data = JSON.parse(document.getElementById("data").textContent);
// Colours that stay apart for the colour-blind (Okabe and Ito), and a dash and a mark of its own for each series.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [14, 4]];
const CHARTS_MAX = 8;
const make = (tag, of = {}, ...inside) => {
  const made = Object.assign(document.createElement(tag), of);
  made.append(...inside);
  return made;
};
const number = v => v == null ? "–" : !isFinite(v) ? String(v) : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en").replaceAll(",", "\u202f")
  : String(+v.toPrecision(4));

// The table.
const body = document.querySelector("#claims tbody");
for (const claim of data.claims) {
  const id = data.done.some(d => d.id === claim.id) ? make("a", {href: "#" + claim.id}, claim.id) : claim.id;
  body.append(make("tr", {}, make("td", {}, id), make("td", {}, claim.paper), make("td", {}, claim.says),
    make("td", {}, claim.seeds), make("td", {}, make("span", {className: "verdict " + claim.verdict}, claim.name)),
    make("td", {className: "dim"}, claim.why)));
}
const rows = [...body.rows];
let wanted = "";
const find = document.getElementById("find");
const show = () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  rows.forEach((row, at) => {
    const text = row.textContent.toLowerCase();
    row.hidden = !(words.every(w => text.includes(w)) && (!wanted || data.claims[at].verdict === wanted));
  });
};
find.addEventListener("input", show);
const buttons = document.getElementById("verdicts");
const counts = new Map();
data.claims.forEach(c => counts.set(c.verdict, [c.name, (counts.get(c.verdict)?.[1] ?? 0) + 1]));
for (const [verdict, [name, count]] of counts) {
  const button = make("button", {type: "button"}, `${name} ${count}`);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    wanted = wanted === verdict ? "" : verdict;
    [...buttons.children].forEach(b => b.setAttribute("aria-pressed", String(b === button && wanted !== "")));
    show();
  });
  buttons.append(button);
}
document.querySelectorAll("#claims th").forEach((head, column, heads) => head.addEventListener("click", () => {
  const direction = head.dataset.dir === "1" ? -1 : 1;
  heads.forEach(h => delete h.dataset.dir);
  head.dataset.dir = direction;
  const key = row => row.cells[column].textContent;
  [...rows].sort((a, b) => direction * key(a).localeCompare(key(b), "en", {numeric: true})).forEach(r => body.append(r));
}));

// Which figures belong in one chart: the curves of one quantity, or one quantity of several things in several settings.
const charts = done => {
  const curves = new Map(), bars = new Map();
  for (const row of done.rows) {
    const at = row.name.lastIndexOf("@");
    const parts = (at < 0 ? row.name : row.name.slice(0, at)).split("/");
    const what = parts.pop();
    if (at >= 0) {
      const key = `${what}, ${row.unit || "count"}`;
      if (!curves.has(key)) curves.set(key, new Map());
      const name = parts.join(", ") || what;
      if (!curves.get(key).has(name)) curves.get(key).set(name, []);
      curves.get(key).get(name).push([+row.name.slice(at + 1), row.ours, row.paper]);
    } else {
      const series = parts.pop() ?? (row.paper == null ? "here" : "here");
      const key = `${what}, ${row.unit || "count"}`;
      if (!bars.has(key)) bars.set(key, []);
      bars.get(key).push({setting: parts.join("/"), series, row});
    }
  }
  return [curves, bars];
};
const lasting = values => values.filter(v => v != null && isFinite(v));
const isWide = values => { const some = lasting(values).filter(v => v > 0); return some.length > 1 && Math.max(...some) / Math.min(...some) > 50; };
const width = box => Math.max(260, Math.floor(box.getBoundingClientRect().width));
const axis = extra => ({font: "12px system-ui", labelFont: "12px system-ui", stroke: "#333", grid: {stroke: "#e6e8ec"}, ...extra});

// Charts are drawn when all of a row are there, so that each knows its width.
const waiting = [];

function draw(box, title, xs, series, options) {
  const figure = make("figure", {}, make("figcaption", {}, title));
  box.append(figure);
  waiting.push(() => drawIn(figure, xs, series, options));
}

function drawIn(figure, xs, series, options) {
  const wide = isWide(series.flatMap(s => s.values));
  const values = (u, ticks) => ticks.map(t => t == null ? "" : number(t));
  const height = 220 + (options.size ?? 40);
  const chart = new uPlot({
    width: width(figure), height, cursor: {show: false}, legend: {live: false},
    scales: {x: options.x, y: {distr: wide ? 3 : 1, range: wide ? undefined : (u, low, high) => [Math.min(0, low), high > 0 ? high * 1.05 : 1]}},
    axes: [axis({label: options.label, values: options.ticks, splits: options.splits, rotate: options.rotate, size: options.size}),
      axis({values, size: 62, label: options.unit})],
    series: [{label: options.label ?? "setting"}, ...series.map((s, at) => ({
      label: s.name, stroke: COLOURS[at % COLOURS.length], dash: DASHES[at % DASHES.length], width: 2, spanGaps: true,
      points: {show: true, size: 5 + 2 * (at % 3), fill: at % 2 ? "#fff" : COLOURS[at % COLOURS.length]}, ...s.options,
    }))],
  }, [xs, ...series.map(s => s.values.map(v => wide && !(v > 0) ? null : v))], figure);
  new ResizeObserver(() => { if (width(figure) !== chart.width) chart.setSize({width: width(figure), height}); }).observe(figure);
}

function curveChart(box, title, curves) {
  const xs = [...new Set([...curves.values()].flat().map(p => p[0]))].sort((a, b) => a - b);
  const series = [...curves].map(([name, points]) => ({name, values: xs.map(x => points.find(p => p[0] === x)?.[1] ?? null)}));
  const paper = [...curves.values()].flat().filter(p => p[2] != null);
  if (paper.length) series.push({name: "the paper's text", values: xs.map(x => paper.find(p => p[0] === x)?.[2] ?? null), options: {width: 0, points: {show: true, size: 11, stroke: "#000", fill: "#ffd400"}}});
  const wide = isWide(xs);
  draw(box, title, xs, series, {x: {time: false, distr: wide ? 3 : 1}, ticks: (u, t) => t.map(v => v == null ? "" : number(v))});
}

function barChart(box, title, all) {
  const settings = [...new Set(all.map(b => b.setting))], names = [...new Set(all.map(b => b.series))];
  // Things are series where several settings have them; else they are the settings themselves.
  const flat = settings.length === 1;
  const xs = flat ? names : settings;
  const value = (x, name, of) => all.find(b => flat ? b.series === x : b.setting === x && b.series === name)?.row[of] ?? null;
  const shown = flat ? [{name: "measured here", values: xs.map(x => value(x, "", "ours"))}]
    : names.map(name => ({name, values: xs.map(x => value(x, name, "ours"))}));
  if (all.some(b => b.row.paper != null)) {
    shown.push({name: "the paper's text", values: xs.map(x => flat ? value(x, "", "paper") : names.map(n => value(x, n, "paper")).find(v => v != null) ?? null)});
  }
  const count = shown.length, each = 0.8 / count;
  const bar = at => ({
    width: 1, dash: [], fill: COLOURS[at % COLOURS.length] + (at >= COLOURS.length ? "88" : "cc"), points: {show: false},
    paths: (u, series, from, to) => {
      const fill = new Path2D();
      const zero = u.valToPos(u.scales.y.distr === 3 ? u.scales.y.min : 0, "y", true);
      for (let i = from; i <= to; i++) {
        const v = u.data[series][i];
        if (v == null) continue;
        const left = u.valToPos(i - 0.4 + each * at, "x", true), right = u.valToPos(i - 0.4 + each * (at + 1), "x", true);
        const top = u.valToPos(v, "y", true);
        fill.rect(left, Math.min(top, zero), Math.max(1, right - left - 1), Math.abs(zero - top));
      }
      return {fill, stroke: null};
    },
  });
  const long = Math.max(...xs.map(x => x.length)) > 6 || xs.length > 4;
  draw(box, title, xs.map((_, i) => i), shown.map((s, at) => ({...s, options: bar(at)})), {
    x: {time: false, range: [-0.6, xs.length - 0.4]}, splits: () => xs.map((_, i) => i), rotate: long ? -60 : 0, size: long ? 130 : 40,
    ticks: (u, t) => t.map(i => { const text = xs[i] ?? ""; return text.length > 26 ? text.slice(0, 25) + "…" : text; }), label: " ",
  });
}

// The experiments.
const home = document.getElementById("experiments");
for (const done of data.done) {
  const section = make("section", {id: done.id});
  section.append(make("h2", {}, done.id), make("p", {}, done.about));
  if (done.verdict) section.append(make("p", {}, make("span", {className: "verdict " + done.verdict}, done.name), ": " + done.why));
  const box = make("div", {className: "charts"});
  section.append(box);
  home.append(section);
  const [curves, bars] = charts(done);
  let drawn = 0;
  for (const [title, of] of curves) if ([...of.values()].some(p => p.length > 1) && drawn++ < CHARTS_MAX) curveChart(box, title, of);
  for (const [title, of] of bars) if (of.length > 1 && of.length <= 240 && drawn++ < CHARTS_MAX) barChart(box, title, of);
  const table = make("table", {className: "figures"}, make("thead", {}, make("tr", {}, ...["", "unit", "paper", "mean", "least", "most"].map(h => make("th", {}, h)))));
  const inside = make("tbody");
  for (const row of done.rows) inside.append(make("tr", {}, make("td", {}, row.name), make("td", {}, row.unit), ...[row.paper, row.ours, row.least, row.most].map(v => make("td", {}, number(v)))));
  table.append(inside);
  section.append(make("details", {}, make("summary", {}, `${done.rows.length} figures of ${done.seeds.length} seed${done.seeds.length > 1 ? "s" : ""}`), make("div", {className: "wide"}, table)),
    make("details", {}, make("summary", {}, "configuration"), make("pre", {}, JSON.stringify(done.config, null, 1))));
}
waiting.forEach(draw => draw());
