"use strict";
// Sorting works at once; the charts follow when their data and plotly.js are unpacked. Nothing is loaded.

const evenly = (colors) => colors.map((c, i) => [i / (colors.length - 1), c]);
const LIGHT = {
  ink: "#1f2430", line: "#d5d9e0", paper: "#ffffff",
  scale: evenly(["#e3eef6", "#86b8d8", "#0072b2", "#08264a"]),
};
const DARK = {
  ink: "#e8eaee", line: "#363b45", paper: "#14161a",
  scale: evenly(["#1c3246", "#0072b2", "#6fbfec", "#f2f8fc"]),
};
const PRINTED = { page: 680, tile: 320, lower: 0.8 }; // pixels that fit an upright page, two charts above each other
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;

// ---- tables ----

function keyOf(row, column, text) {
  const cell = row.cells[column];
  if (text) return cell.textContent.trim();
  return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
}

function compare(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null); // whoever has no number comes last
  return direction * (typeof a === "string" ? a.localeCompare(b) : a - b);
}

function sort(heading) {
  const table = heading.closest("table"), text = heading.dataset.kind === "text";
  const before = heading.getAttribute("aria-sort");
  const first = heading.dataset.kind === "best-high" ? "descending" : "ascending";
  const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const body = table.tBodies[0], direction = order === "ascending" ? 1 : -1;
  const keyed = [...body.rows].map((row) => [keyOf(row, heading.cellIndex, text), row]);
  keyed.sort((a, b) => compare(a[0], b[0], direction));
  body.append(...keyed.map((pair) => pair[1]));
  const said = table.closest("section").querySelector(".said");
  if (said) said.textContent = `Sorted by ${heading.querySelector("button").textContent}, ${order}.`;
}

for (const heading of document.querySelectorAll(".sortable thead th")) {
  heading.querySelector("button").addEventListener("click", () => sort(heading));
}

// ---- charts ----

async function unpack(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Fills in what depends on light and dark: the color of the text, and a scale from pale to strong.
function inked(value, theme) {
  if (value === "ink" || value === "scale") return theme[value];
  if (value === "faint ink") return theme.ink + "26";
  if (Array.isArray(value)) return typeof value[0] === "object" ? value.map((v) => inked(v, theme)) : value;
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, inked(v, theme)]));
}

function axis(given, theme) {
  const lines = { gridcolor: theme.line, linecolor: theme.line, zerolinecolor: theme.line, tickcolor: theme.line };
  return { ...lines, automargin: true, ...given };
}

// On paper a width of its own; on a screen that of the page.
function size(place, chart) {
  if (!printing) return { autosize: true, height: chart.square ? Math.min(chart.height, place.clientWidth) : chart.height };
  const width = place.closest(".tiles") ? PRINTED.tile : PRINTED.page;
  return { autosize: false, width, height: PRINTED.lower * chart.height };
}

function layout(given, theme) {
  return {
    font: { color: theme.ink, family: "system-ui, sans-serif", size: 13 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 55, r: 15, t: 15, b: 50 },
    hovermode: "closest",
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.line, font: { color: theme.ink } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    ...given,
    xaxis: axis(given.xaxis, theme),
    yaxis: axis(given.yaxis, theme),
  };
}

const few = window.matchMedia("(hover: none), (max-width: 48rem)"); // where a toolbar would lie over the chart

function shownView(figure, chart) {
  const chosen = figure.querySelector("input:checked");
  return chart.views[chosen ? chosen.value : Object.keys(chart.views)[0]];
}

function draw(name, chart) {
  const figure = document.getElementById(name), place = figure.querySelector(".plot");
  const view = shownView(figure, chart);
  const theme = dark.matches && !printing ? DARK : LIGHT;
  const options = {
    responsive: true, displaylogo: false, displayModeBar: few.matches ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"],
  };
  const sized = size(place, chart);
  place.style.height = `${sized.height}px`;
  return Plotly.react(place, inked(view.data, theme), { ...layout(inked(view.layout, theme), theme), ...sized }, options);
}

// As on white paper, whatever the page looks like; vectors, which a paper can take at any size.
async function download(name, chart) {
  const figure = document.getElementById(name), view = shownView(figure, chart);
  const drawn = { data: inked(view.data, LIGHT), layout: { ...layout(inked(view.layout, LIGHT), LIGHT), paper_bgcolor: LIGHT.paper } };
  const paper = { format: "svg", width: PRINTED.page, height: PRINTED.lower * chart.height };
  const link = document.createElement("a");
  link.href = await Plotly.toImage(drawn, paper);
  link.download = `${name}.svg`;
  link.click();
}

// A page is not loaded while a frame of it is being written: headless printing and screenshots wait for the figures.
function holdLoad() {
  const frame = document.createElement("iframe");
  frame.hidden = true;
  document.body.append(frame);
  frame.contentDocument.open();
  return () => { frame.contentDocument.close(); frame.remove(); };
}

const slice = () => new Promise((resolve) => { setTimeout(resolve); }); // lets the page answer between two figures

async function start() {
  const [library, data] = await Promise.all([unpack("library"), unpack("charts")]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  const charts = Object.entries(JSON.parse(data));
  const all = () => Promise.all(charts.map(([name, chart]) => draw(name, chart)));
  for (const [name, chart] of charts) {
    const figure = document.getElementById(name);
    figure.addEventListener("change", () => draw(name, chart));
    figure.querySelector(".download").addEventListener("click", () => download(name, chart));
  }
  dark.addEventListener("change", all);
  few.addEventListener("change", all);
  window.addEventListener("beforeprint", () => { printing = true; all(); });
  window.addEventListener("afterprint", () => { printing = false; all(); });
  for (const [name, chart] of charts) { // all of them, wherever the reader is
    await draw(name, chart);
    await slice();
  }
  document.documentElement.dataset.drawn = "yes";
}

// ---- runs under way ----

// The page is written anew while runs train: it loads itself again, and the reader stays where they were.
const live = document.getElementById("live");
const PLACE = "coterie" + location.pathname;

function keepPlace() {
  const views = [...document.querySelectorAll("figure input:checked")].map((input) => [input.name, input.value]);
  const open = [...document.querySelectorAll("details")].map((details) => details.open);
  const sorted = [...document.querySelectorAll(".sortable th")].map((heading) => heading.getAttribute("aria-sort"));
  sessionStorage.setItem(PLACE, JSON.stringify({ scroll: window.scrollY, views, open, sorted }));
}

function restorePlace() {
  const kept = sessionStorage.getItem(PLACE);
  if (kept === null) return;
  sessionStorage.removeItem(PLACE);
  const { scroll, views, open, sorted } = JSON.parse(kept);
  for (const input of document.querySelectorAll("figure input")) {
    input.checked ||= views.some(([name, value]) => input.name === name && input.value === value);
  }
  document.querySelectorAll("details").forEach((details, i) => { details.open = Boolean(open[i]); });
  document.querySelectorAll(".sortable th").forEach((heading, i) => {
    for (let turn = 0; sorted[i] && turn < 2 && heading.getAttribute("aria-sort") !== sorted[i]; turn += 1) sort(heading);
  });
  window.scrollTo(0, scroll);
}

function reloadWhenSeen() {
  if (document.hidden) {
    document.addEventListener("visibilitychange", reloadWhenSeen, { once: true });
  } else {
    try { keepPlace(); } catch { /* a browser that keeps nothing begins at the top */ }
    location.reload();
  }
}

try { restorePlace(); } catch { /* see above */ }

const release = holdLoad();
start().catch((error) => {
  const trouble = document.getElementById("trouble");
  trouble.hidden = false;
  trouble.textContent = `The charts cannot be drawn here (${error.message}): open this page in a browser of 2023 or later.`;
}).finally(() => {
  release();
  if (live) setTimeout(reloadWhenSeen, 1000 * Number(live.dataset.seconds));
});
