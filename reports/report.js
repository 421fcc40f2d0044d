// Makes the page interactive: filters, switches, a readout of cells, links
// that keep the selection. The page is complete without it. No text of a run
// ever becomes markup here: everything is set as text.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const state = { at: "", o: new Set(), d: "", q: "", v: "", w: "" };

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick") element.addEventListener("click", value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function drawn(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// The selection as a URL fragment, so that a link to it can be sent.
function address() {
  const parts = [state.at];
  if (state.o.size) parts.push("o=" + [...state.o].join(","));
  for (const key of ["d", "q", "v", "w"]) if (state[key]) parts.push(key + "=" + encodeURIComponent(state[key]));
  return "#" + parts.join("&");
}

function remember() {
  if (location.hash !== address() && !(location.hash === "" && address() === "#")) history.replaceState(null, "", address());
}

function recall() {
  const [at, ...parts] = location.hash.slice(1).split("&");
  Object.assign(state, { at, o: new Set(), d: "", q: "", v: "", w: "" });
  for (const part of parts) {
    const [key, value] = [part.slice(0, 1), part.slice(2)];
    let text = "";
    try { text = decodeURIComponent(value); } catch { continue; }
    if (key === "o") state.o = new Set(text.split(",").filter((o) => OUTCOMES.includes(o)));
    else if ("dqvw".includes(key) && part[1] === "=") state[key] = text;
  }
}

// Scrolls to an element, and opens the sections that hide it.
function lead(id) {
  const place = id && document.getElementById(id);
  if (!place) return;
  for (let up = place; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  const figure = place.closest("figure");
  if (figure) figure.classList.remove("away");
  for (const old of document.querySelectorAll(".here")) old.classList.remove("here");
  place.classList.add("here");
  place.scrollIntoView({ block: place.tagName === "TR" ? "center" : "start" });
  if (!place.hasAttribute("tabindex")) place.setAttribute("tabindex", "-1");
  place.focus({ preventScroll: true });
}

// --- filters: outcome, domain, text; for tiles, findings, nodes and domains together

const OUTCOMES = ["failed", "degraded", "unknown", "pass"];
const form = document.getElementById("filter");
const count = make("output", { class: "count" });
const chips = new Map();
let search, choice, clear;
const outcomeOf = (element) => OUTCOMES.find((o) => element.classList.contains(o));
const things = [];
for (const tile of document.querySelectorAll("#tiles a")) {
  things.push({ element: tile, kind: "tile", outcome: tile.className, domain: tile.closest(".rack").dataset.d, text: (tile.title + " " + tile.closest(".rack").firstElementChild.firstElementChild.textContent).toLowerCase() });
}
for (const item of document.querySelectorAll(".item")) {
  const kind = item.tagName === "TR" ? "node" : item.tagName === "LI" ? "gap" : item.classList.contains("repair") ? "repair" : "finding";
  things.push({ element: item, kind, outcome: outcomeOf(item), domain: item.dataset.d, text: item.textContent.toLowerCase() });
}
for (const row of document.querySelectorAll("#domains ~ .scroll tbody tr")) {
  things.push({ element: row, kind: "domain", outcome: outcomeOf(row), domain: row.dataset.d, text: row.textContent.toLowerCase() });
}

function buildFilter() {
  const group = make("span", { class: "chips", role: "group", "aria-label": "Outcome" });
  for (const outcome of OUTCOMES) {
    const number = things.filter((t) => t.kind === "tile" && t.outcome === outcome).length;
    const chip = make("button", { type: "button", class: "chip " + outcome, "aria-pressed": "false", onclick: () => {
      state.o.has(outcome) ? state.o.delete(outcome) : state.o.add(outcome);
      show();
    } }, outcome + " " + number);
    chips.set(outcome, chip);
    group.append(chip);
  }
  choice = make("select", { "aria-label": "Domain" }, make("option", { value: "" }, "all domains"));
  data.domains.forEach((name, index) => choice.append(make("option", { value: String(index) }, name)));
  choice.addEventListener("change", () => { state.d = choice.value; show(); });
  choice.hidden = data.domains.length < 2;
  search = make("input", { type: "search", placeholder: "node, class, text …", "aria-label": "Search nodes and findings", autocomplete: "off", spellcheck: "false" });
  let timer;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { state.q = search.value; show(); }, 80); });
  clear = make("button", { type: "button", class: "clear", onclick: () => { state.o.clear(); state.d = ""; state.q = ""; show(); search.focus(); } }, "show all");
  form.append(group, choice, search, clear, count);
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(timer); state.q = search.value; show(); });
  form.hidden = things.length === 0;
}

function filter() {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const all = { tile: 0, finding: 0 }, left = { tile: 0, finding: 0 };
  const on = state.o.size > 0 || state.d !== "" || words.length > 0;
  for (const t of things) {
    // An unknown belongs to no domain; only the text filter can hide it.
    const away = (state.o.size > 0 && !state.o.has(t.outcome)) || (state.d !== "" && t.domain !== state.d && t.kind !== "gap") || words.some((w) => !t.text.includes(w));
    if (t.kind in all) { all[t.kind] += 1; if (!away) left[t.kind] += 1; }
    if (t.kind === "tile") {
      // Tiles keep their position, because it shows the location of the node.
      t.element.classList.toggle("off", away);
    } else {
      t.element.hidden = away;
    }
  }
  for (const rack of document.querySelectorAll(".rack")) rack.classList.toggle("off", on && !rack.querySelector("a:not(.off)"));
  for (const section of document.querySelectorAll("section.domain[data-d]")) section.hidden = state.d !== "" && section.dataset.d !== state.d;
  for (const part of document.querySelectorAll(".passing")) {
    part.hidden = on && !part.querySelector("tr.item:not([hidden])");
  }
  count.textContent = on ? left.tile + " of " + all.tile + " nodes, " + left.finding + " of " + all.finding + " findings" : "";
  clear.hidden = !on;
  for (const [outcome, chip] of chips) chip.setAttribute("aria-pressed", String(state.o.has(outcome)));
  choice.value = state.d;
  if (document.activeElement !== search) search.value = state.q;
}

// --- tiles: one stop for the tab key, arrows inside

function tiles() {
  const all = [...document.querySelectorAll("#tiles a")];
  if (!all.length) return;
  all.forEach((tile, i) => { tile.tabIndex = i ? -1 : 0; });
  document.getElementById("tiles").addEventListener("keydown", (event) => {
    const from = all.indexOf(event.target);
    if (from < 0) return;
    const usable = (i) => all[i] && !all[i].classList.contains("off");
    let to = from;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      do to += step; while (all[to] && !usable(to));
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      // The nearest tile of the next line, as it is laid out now.
      const down = event.key === "ArrowDown" ? 1 : -1;
      const box = all[from].getBoundingClientRect();
      let best = Infinity;
      for (let i = from + down; all[i]; i += down) {
        const other = all[i].getBoundingClientRect();
        const fall = (other.top - box.top) * down;
        if (fall < 4 || !usable(i)) continue;
        if (fall > 12 * box.height) break;
        const far = fall * 4 + Math.abs(other.left - box.left);
        if (far < best) { best = far; to = i; }
      }
    } else if (event.key === "Home" || event.key === "End") {
      const order = event.key === "Home" ? all : [...all].reverse();
      to = all.indexOf(order.find((t) => !t.classList.contains("off")));
    } else {
      return;
    }
    event.preventDefault();
    if (!all[to]) return;
    all[from].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  });
}

// --- figures

const figures = new Map();
const ratioBands = data.bands;

// Steps of an absolute scale between the lowest and the highest value.
function absoluteBands(values, more) {
  const known = values.filter((v) => v !== null);
  let low = Math.min(...known), high = Math.max(...known);
  if (!known.length) return null;
  if (high - low < 1e-9 * Math.abs(high)) { low -= Math.abs(low) * 0.05 + 1e-9; high += Math.abs(high) * 0.05 + 1e-9; }
  const steps = ratioBands.length;
  const edges = Array.from({ length: steps - 1 }, (_, i) => low + (high - low) * (i + 1) / steps);
  return { low, high, edges, more };
}

function colourOf(figure, at) {
  const { shown } = figure;
  const value = shown.values[at];
  if (value === undefined) return "";
  if (value === null) return "url(#hatch)";
  if (shown.absolute) {
    let step = 0;
    while (step < shown.absolute.edges.length && value >= shown.absolute.edges[step]) step += 1;
    // Lighter is worse: less for bandwidths, more for latencies.
    if (!shown.absolute.more) step = ratioBands.length - 1 - step;
    return ratioBands[ratioBands.length - 1 - step][1];
  }
  const band = ratioBands.find(([from]) => value >= from);
  return band ? band[1] : ratioBands[ratioBands.length - 1][1];
}

const brief = (v) => {
  const size = Math.abs(v);
  return size >= 1e5 ? v.toExponential(2) : size >= 100 ? v.toFixed(1) : size >= 10 ? v.toFixed(2) : size >= 0.1 || size === 0 ? v.toFixed(3) : v.toPrecision(4);
};
const isDark = (colour) => {
  if (colour[0] !== "#") return false;
  const [r, g, b] = [1, 3, 5].map((i) => { const c = parseInt(colour.slice(i, i + 2), 16) / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b <= 0.179;
};
// "-" was planned and has no number, "." was not part of the test.
const numbers = (text, by) => text === undefined ? null : text.split(" ").map((t) => t === "." ? undefined : t === "-" || Number.isNaN(Number(t)) ? null : Number(t) / by);

function redraw(figure) {
  const { of, svg } = figure;
  const [left, top, width, height] = of.cells;
  const then = state.w === "before" && figure.before, change = state.w === "change" && figure.before;
  const absolute = state.v === "abs" && !change;
  const source = then ? figure.before : figure.values;
  let values = source;
  if (change) {
    values = source.map((v, i) => {
      const old = figure.before[i];
      return v === undefined ? undefined : v === null || !old ? null : of.more ? v / old : old / v;
    });
  } else if (!absolute) {
    values = then ? figure.beforeRatios : figure.ratios;
  }
  figure.shown = { values, absolute: absolute ? absoluteBands(values.filter((v) => v !== undefined), of.more) : null };
  if (absolute && !figure.shown.absolute) figure.shown.absolute = null;
  const columns = figure.cols.length;
  const paths = new Map();
  figure.rows.forEach((_, row) => {
    for (let col = 0; col < columns;) {
      const colour = colourOf(figure, row * columns + col);
      let end = col + 1;
      while (end < columns && colourOf(figure, row * columns + end) === colour) end += 1;
      if (colour) {
        const d = "M" + (left + col * width) + " " + (top + row * height) + "h" + (end - col) * width + "v" + height + "h-" + (end - col) * width + "z";
        paths.set(colour, (paths.get(colour) || "") + d);
      }
      col = end;
    }
  });
  svg.querySelector(".cells").replaceChildren(...[...paths].map(([fill, d]) => drawn("path", { fill, d })));
  if (of.numbers) {
    const texts = [];
    values.forEach((_, at) => {
      const number = change ? values[at] : source[at];
      if (number === null || number === undefined) return;
      const colour = colourOf(figure, at);
      const text = drawn("text", { x: left + (at % columns) * width + width / 2, y: top + Math.floor(at / columns) * height + height / 2, fill: colour[0] !== "#" ? "currentColor" : isDark(colour) ? "#ffffff" : "#000000" });
      text.textContent = change ? number.toFixed(3) : brief(number);
      texts.push(text);
    });
    svg.querySelector(".numbers").replaceChildren(...texts);
  }
  // Crosses show the judgement of this run, not of another.
  svg.querySelector(".crosses").classList.toggle("gone", Boolean(then || change));
  legend(figure, change, then);
  for (const [name, buttons] of [["v", figure.scale], ["w", figure.time]]) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === (name === "w" && !figure.before ? "" : state[name])));
  }
  for (const button of figure.scale) button.disabled = Boolean(change);
  figure.root.dataset.shown = change ? "change" : (then ? "before " : "now ") + (figure.shown.absolute ? "absolute" : "ratio");
}

function legend(figure, change, then) {
  const { absolute } = figure.shown;
  const key = figure.svg.querySelector(".key"), ticks = [...figure.svg.querySelectorAll(".tick")];
  const unit = figure.of.unit ? " " + figure.of.unit : "";
  if (absolute) {
    key.textContent = "Measured" + (then ? " before" : "") + unit + ", " + brief(absolute.low) + " to " + brief(absolute.high) + (absolute.more ? "" : " (less is better)");
    const edges = absolute.more ? absolute.edges : [...absolute.edges].reverse();
    ticks.forEach((tick, i) => { tick.textContent = brief(edges[i]); });
  } else {
    key.textContent = change ? "Ratio of now to before; below 1 is worse than before" : then ? "Before: " + figure.key.replace(/^Ratio/, "ratio") : figure.key;
    ticks.forEach((tick, i) => { tick.textContent = figure.ticks[i]; });
  }
}

// The description of one cell.
function words(figure, row, col) {
  const { of } = figure;
  const at = row * figure.cols.length + col;
  const unit = of.unit ? " " + of.unit : "";
  const parts = [figure.rows[row] + of.joint + figure.cols[col] + ": "];
  const value = figure.values[at];
  if (value === undefined) return parts[0] + "not part of this test";
  parts.push(value === null ? "no number" : brief(value) + unit);
  if (figure.ratios[at] !== null && figure.ratios[at] !== undefined) parts.push(", ratio " + figure.ratios[at].toFixed(3));
  if (of.reference) parts.push(" (" + of.reference + ")");
  const readings = figure.readings && figure.readings[at];
  if (readings && readings.includes(",")) {
    const each = readings.split(",");
    const known = each.map(Number).filter((v) => !Number.isNaN(v));
    parts.push("; " + each.length + " readings " + each.map((r) => r === "x" ? "none" : r).join(", "));
    if (known.length > 1) parts.push(", spread " + ((Math.max(...known) - Math.min(...known)) / (value || known[0]) * 100).toFixed(1) + " %");
  }
  if (figure.before) {
    const old = figure.before[at];
    parts.push(old === null || old === undefined ? "; before: no number" : "; before: " + brief(old) + unit);
    if (old && value) parts.push(" (" + (value >= old ? "+" : "−") + Math.abs((value / old - 1) * 100).toFixed(1) + " %)");
  }
  for (const o of blamed(figure, row, col)) parts.push("; blamed: " + o.name + (o.files.length ? " [" + o.files.join(", ") + "]" : ""));
  return parts.join("");
}

const blamed = (figure, row, col) => figure.of.outlines.filter((o) => o.rows.includes(row) || o.cols.includes(col) || o.cells.some(([r, c]) => r === row && c === col));

function point(figure, row, col) {
  const [left, top, width, height] = figure.of.cells;
  if (row === null) {
    figure.cursor.setAttribute("visibility", "hidden");
    figure.out.textContent = figure.idle;
    figure.at = null;
    return;
  }
  figure.at = [row, col];
  for (const [key, value] of Object.entries({ x: left + col * width, y: top + row * height, width, height, visibility: "visible" })) figure.cursor.setAttribute(key, value);
  figure.out.textContent = words(figure, row, col);
}

function switches(label, options, key) {
  return options.map(([value, text]) => make("button", { type: "button", value, "aria-pressed": "false", onclick: () => { state[key] = value; show(); } }, text));
}

function buildFigure(of) {
  const root = document.getElementById(of.id);
  const svg = root.querySelector("svg"), plot = root.querySelector(".plot");
  const figure = {
    of, root, svg, rows: of.rows, cols: of.cols || of.rows,
    values: numbers(of.values, 1), ratios: numbers(of.ratios, 1000),
    before: numbers(of.before, 1), beforeRatios: numbers(of.before_ratios, 1000),
    readings: of.readings && of.readings.split(" "),
    key: svg.querySelector(".key").textContent.trim(),
    ticks: [...svg.querySelectorAll(".tick")].map((t) => t.textContent.trim()),
    out: make("output", { "aria-live": "polite" }), cursor: drawn("rect", { class: "cursor", visibility: "hidden" }),
    idle: "Point at a cell to read it, or use the arrow keys; Enter leads to the finding that blames it.", at: null,
  };
  // The tooltips of the image are for pages without this script.
  svg.querySelector(".tips").remove();
  svg.append(figure.cursor);
  figure.out.textContent = figure.idle;
  plot.after(figure.out);
  figure.scale = switches("Scale", [["", "ratio"], ["abs", "absolute"]], "v");
  figure.time = data.before && figure.before ? switches("Time", [["", "now"], ["before", "before"], ["change", "change"]], "w") : [];
  const bar = make("div", { class: "switches" }, make("span", { role: "group", "aria-label": "Scale" }, ...figure.scale));
  if (figure.time.length) bar.append(make("span", { role: "group", "aria-label": "Before and after" }, ...figure.time));
  plot.before(bar);
  plot.tabIndex = 0;
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-label", root.querySelector("figcaption").textContent + ". Arrow keys move from cell to cell.");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const col = Math.floor(((event.clientX - box.left) * scale - of.cells[0]) / of.cells[2]);
    const row = Math.floor(((event.clientY - box.top) * scale - of.cells[1]) / of.cells[3]);
    if (row < 0 || col < 0 || row >= figure.rows.length || col >= figure.cols.length) point(figure, null);
    else if (!figure.at || figure.at[0] !== row || figure.at[1] !== col) point(figure, row, col);
  });
  svg.addEventListener("pointerleave", () => { if (document.activeElement !== plot) point(figure, null); });
  svg.addEventListener("click", () => follow(figure));
  plot.addEventListener("keydown", (event) => {
    const [row, col] = figure.at || [0, 0];
    const last = [figure.rows.length - 1, figure.cols.length - 1];
    const to = {
      ArrowUp: [row - 1, col], ArrowDown: [row + 1, col], ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1],
      Home: [row, 0], End: [row, last[1]], PageUp: [0, col], PageDown: [last[0], col],
    }[event.key];
    if (event.key === "Enter") { follow(figure); return; }
    if (event.key === "Escape") { point(figure, null); return; }
    if (!to) return;
    event.preventDefault();
    if (!figure.at) point(figure, 0, 0);
    else point(figure, Math.min(Math.max(to[0], 0), last[0]), Math.min(Math.max(to[1], 0), last[1]));
  });
  figures.set(of.id, figure);
}

function follow(figure) {
  const first = figure.at && blamed(figure, ...figure.at)[0];
  if (first) go(first.at);
}

// Of several figures of one domain, one is selected; the worst comes first.
function choosers() {
  for (const group of document.querySelectorAll(".figures")) {
    const all = [...group.querySelectorAll(":scope > figure")];
    if (all.length < 3) continue;
    const select = make("select", { "aria-label": "Test" }, make("option", { value: "" }, "all " + all.length + " figures"));
    all.forEach((figure, i) => {
      const marked = figure.querySelector(".outlined") ? " (with blamed parts)" : "";
      select.append(make("option", { value: String(i) }, figure.querySelector("figcaption").textContent + marked));
    });
    select.addEventListener("change", () => all.forEach((figure, i) => figure.classList.toggle("away", select.value !== "" && select.value !== String(i))));
    group.before(make("label", { class: "chooser" }, "Show ", select));
  }
}

// --- commands and links to copy

function copy(text, button) {
  const said = (word) => { const old = button.dataset.word; button.textContent = word; setTimeout(() => { button.textContent = old; }, 1500); };
  const byHand = () => {
    // Pages from files may not have a clipboard of their own.
    const area = make("textarea", { class: "offscreen", readonly: "" });
    area.value = text;
    document.body.append(area);
    area.select();
    let done = false;
    try { done = document.execCommand("copy"); } catch { done = false; }
    area.remove();
    said(done ? "copied" : "select it and copy");
  };
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(() => said("copied"), byHand);
  else byHand();
}

function copyButton(word, label, text) {
  const button = make("button", { type: "button", class: "copy", "data-word": word, "aria-label": label }, word);
  button.addEventListener("click", () => copy(text(), button));
  return button;
}

function commands() {
  for (const block of document.querySelectorAll("pre.command")) {
    const text = block.textContent;
    const holder = make("div", { class: "copyable" });
    block.replaceWith(holder);
    holder.append(block, copyButton("copy", "Copy the command", () => text));
  }
  for (const code of document.querySelectorAll("code.command")) {
    const text = code.textContent;
    code.after(copyButton("copy", "Copy " + text, () => text));
  }
  for (const finding of document.querySelectorAll("article.finding")) {
    const links = finding.querySelector(".links");
    const shownIn = [...figures.values()].find((f) => f.of.outlines.some((o) => o.at === finding.id));
    if (shownIn) links.append(" ", make("a", { href: "#" + shownIn.of.id }, "its matrix"));
    links.append(" ", copyButton("copy link", "Copy a link to this finding", () => location.href.split("#")[0] + "#" + finding.id));
  }
}

function go(id) {
  state.at = id;
  show();
  lead(id);
}

function show() {
  filter();
  const view = state.v + "/" + state.w;
  if (show.view !== view) {
    show.view = view;
    figures.forEach(redraw);
  }
  remember();
}

buildFilter();
tiles();
data.figures.forEach(buildFigure);
choosers();
commands();
recall();
show();
lead(state.at);

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const id = link.getAttribute("href").slice(1);
  state.at = id;
  // A new history entry, so that "back" returns here.
  history.pushState(null, "", address());
  lead(id);
});
window.addEventListener("hashchange", () => { recall(); show(); lead(state.at); });
window.addEventListener("popstate", () => { recall(); show(); });
// Printed pages cannot be opened further.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("article details:not([open]), #domains ~ section details:not([open])")];
  closed.forEach((d) => { d.open = true; });
});
window.addEventListener("afterprint", () => closed.forEach((d) => { d.open = false; }));
document.documentElement.dataset.ready = "yes";
