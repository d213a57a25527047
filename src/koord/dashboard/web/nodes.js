// Nodes: a heat map of all of them, and the same as a table.

import { announce, empty, h, heading, navigate, nodeLink, replace } from "/assets/dom.js";
import { ago, bytes, cores, count, percent, plural } from "/assets/format.js";
import { tierBar, virtualRows } from "/assets/rows.js";
import { now, store, tiers, USE } from "/assets/store.js";

const part = (use, part, whole) => (use[whole] ? use[part] / use[whole] : 0);
const MEASURES = {
  "cpu-used": ["CPU used", (node) => part(node.cpu, USE.used, USE.capacity), true],
  "memory-used": ["Memory used", (node) => part(node.memory, USE.used, USE.capacity), true],
  "cpu-requested": ["CPU requested by prod", (node) => part(node.cpu, USE.prodRequested, USE.capacity), false],
  "batch-lent": ["CPU lent to batch", (node) => part(node.cpu, USE.batchLent, USE.capacity), false],
  "batch-used": ["CPU used by batch", (node) => part(node.cpu, USE.batchUsed, USE.capacity), true],
};
const SORTS = {
  name: ["Name", null],
  cpu: ["CPU used", (node) => -part(node.cpu, USE.used, USE.capacity)],
  memory: ["Memory used", (node) => -part(node.memory, USE.used, USE.capacity)],
  batch: ["CPU that batch can still get", (node) => node.cpu[USE.batchRequested] - node.cpu[USE.batchLent]],
};
const STEPS = 10;

function select(id, label, options, value, onchange) {
  const field = h("select", { id, onchange }, options.map(([key, title]) => h("option", { value: key }, title)));
  field.value = value;
  return h("div", { class: "field" }, h("label", { for: id }, label), field);
}

export function open() {
  const query = new URLSearchParams(location.search);
  const state = {
    words: query.get("words") || "",
    pool: query.get("pool") || "",
    label: query.get("label") || "",
    measure: MEASURES[query.get("color")] ? query.get("color") : "cpu-used",
    sort: SORTS[query.get("sort")] ? query.get("sort") : "name",
  };
  let shown = [];
  let places = [];
  let marked = -1;
  let pools = "";

  const set = (key) => (event) => {
    state[key] = event.target.value;
    const kept = new URLSearchParams();
    for (const [name, value, usual] of [["words", state.words, ""], ["pool", state.pool, ""], ["label", state.label, ""], ["color", state.measure, "cpu-used"], ["sort", state.sort, "name"]]) {
      if (value !== usual) kept.set(name, value);
    }
    history.replaceState(null, "", `/nodes${kept.size ? `?${kept}` : ""}`);
    update();
  };
  const poolField = h("div");
  const labels = h("datalist", { id: "labels" });
  const canvas = h("canvas", { class: "heat", tabindex: "0", role: "application", "aria-label": "Heat map of nodes. Arrow keys choose a node, Enter opens it." });
  const tip = h("div", { class: "tip", hidden: true });
  const scale = h("div", { class: "scale" });
  const summary = h("p", { class: "muted", role: "status" });
  const nothing = h("div");
  const rows = virtualRows({
    label: "Nodes",
    columns: [
      { title: "Node", width: "minmax(11rem, 1.3fr)" },
      { title: "CPU used", width: "minmax(12rem, 1.4fr)" },
      { title: "Memory used", width: "minmax(12rem, 1.4fr)" },
      { title: "Prod requested", width: "minmax(7.5rem, 0.8fr)", number: true },
      { title: "Batch lent", width: "minmax(6.5rem, 0.8fr)", number: true },
      { title: "Batch used", width: "minmax(6.5rem, 0.8fr)", number: true },
      { title: "Pods", width: "4rem", number: true },
      { title: "Report", width: "7rem", number: true },
    ],
    cells: (index) => nodeCells(shown[index]),
  });
  const heat = h("div", { class: "heat-frame" }, canvas, tip);
  const element = h(
    "div",
    {},
    heading("Nodes", "koord top nodes"),
    h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("div", { class: "field" }, h("label", { for: "words" }, "Name"), h("input", { id: "words", type: "search", value: state.words, oninput: set("words"), placeholder: "part of a name" })),
      poolField,
      h("div", { class: "field" }, h("label", { for: "label" }, "Label"), h("input", { id: "label", list: "labels", value: state.label, oninput: set("label"), placeholder: "key=value" }), labels),
      select("measure", "Colour by", Object.entries(MEASURES).map(([key, [title]]) => [key, title]), state.measure, set("measure")),
      select("sort", "Sort by", Object.entries(SORTS).map(([key, [title]]) => [key, title]), state.sort, set("sort")),
    ),
    summary,
    h("section", { class: "card" }, h("h2", {}, "Heat map"), scale, heat),
    h("section", { class: "card flush" }, h("h2", {}, "All nodes"), h("ul", { class: "legend" }, ["prod", "mid", "batch", "system", "idle"].map((tier) => h("li", {}, h("span", { class: `swatch tier-${tier}` }), tier))), nothing, rows.element),
  );

  function nodeCells(node) {
    const known = node.reported !== null;
    const use = (of, format) => (known ? tierBar(tiers(of), of[USE.capacity], `${percent(of[USE.used], of[USE.capacity])} of ${format(of[USE.capacity])}`) : h("span", { class: "muted" }, `? of ${format(of[USE.capacity])}`));
    return [
      h("span", { class: "node-name" }, nodeLink(node.name), node.ready ? null : h("span", { class: "chip bad" }, "not ready"), node.schedulable ? null : h("span", { class: "chip warn" }, "cordoned")),
      use(node.cpu, cores),
      use(node.memory, bytes),
      cores(node.cpu[USE.prodRequested]),
      cores(node.cpu[USE.batchLent]),
      known ? cores(node.cpu[USE.batchUsed]) : "-",
      count(node.pods),
      ago(node.reported, now()),
    ];
  }

  function filter() {
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    shown = [];
    for (const name of store.order) {
      const node = store.nodes.get(name);
      if (state.pool && node.pool !== state.pool) continue;
      if (state.label && !node.labels.some((label) => label === state.label || label.startsWith(`${state.label}=`))) continue;
      if (words.every((word) => name.toLowerCase().includes(word))) shown.push(node);
    }
    const by = SORTS[state.sort][1];
    if (by) shown = shown.map((node) => [by(node), node]).sort((a, b) => a[0] - b[0]).map((pair) => pair[1]);
  }

  function drawHeat() {
    const style = getComputedStyle(document.documentElement);
    const colours = Array.from({ length: STEPS }, (_, step) => style.getPropertyValue(`--heat-${step}`).trim());
    const [unknown, edge, text] = ["--heat-unknown", "--accent", "--text-muted"].map((name) => style.getPropertyValue(name).trim());
    const [title, measure, needsReport] = MEASURES[state.measure];
    const groups = new Map();
    shown.forEach((node, index) => {
      const pool = node.pool || "no pool";
      if (!groups.has(pool)) groups.set(pool, []);
      groups.get(pool).push(index);
    });
    const width = heat.clientWidth || 800;
    const cell = shown.length > 3000 ? 10 : shown.length > 1000 ? 13 : shown.length > 200 ? 18 : shown.length > 40 ? 26 : 44;
    const across = Math.max(1, Math.floor(width / cell));
    const named = groups.size > 1 || !groups.has("no pool");
    let top = 0;
    places = new Array(shown.length);
    const titles = [];
    for (const [pool, members] of groups) {
      if (named) {
        titles.push([`${pool}: ${plural(members.length, "node")}`, top + 14]);
        top += 20;
      }
      members.forEach((index, at) => (places[index] = [(at % across) * cell, top + Math.floor(at / across) * cell]));
      top += Math.ceil(members.length / across) * cell + 10;
    }
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = Math.max(1, top) * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${top}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = text;
    for (const [words, at] of titles) context.fillText(words, 0, at);
    const gap = cell > 16 ? 3 : 1;
    shown.forEach((node, index) => {
      const [left, at] = places[index];
      const known = node.reported !== null || !needsReport;
      context.fillStyle = known ? colours[Math.min(STEPS - 1, Math.floor(measure(node) * STEPS))] : unknown;
      context.fillRect(left, at, cell - gap, cell - gap);
      if (!node.ready) {
        context.strokeStyle = style.getPropertyValue("--bad").trim();
        context.lineWidth = 2;
        context.strokeRect(left + 1, at + 1, cell - gap - 2, cell - gap - 2);
      }
    });
    if (marked >= 0 && places[marked]) {
      context.strokeStyle = edge;
      context.lineWidth = 3;
      context.strokeRect(places[marked][0] - 1, places[marked][1] - 1, cell - gap + 2, cell - gap + 2);
    }
    canvas.dataset.cell = cell;
    canvas.dataset.across = across;
    replace(
      scale,
      h("span", {}, title),
      h("span", { class: "muted" }, "0 %"),
      h("span", { class: "ramp", "aria-hidden": "true" }, colours.map((_, step) => h("span", { class: `heat-${step}` }))),
      h("span", { class: "muted" }, "100 % of the node"),
      h("span", { class: "ramp" }, h("span", { class: "heat-unknown" })),
      h("span", { class: "muted" }, "no report"),
      shown.some((node) => !node.ready) ? [h("span", { class: "ramp not-ready" }, h("span")), h("span", { class: "muted" }, "not ready")] : null,
    );
  }

  function describe(node) {
    const [title, measure, needsReport] = MEASURES[state.measure];
    const value = node.reported === null && needsReport ? "unknown" : `${Math.round(100 * measure(node))} %`;
    return `${node.name}: ${title} ${value}`;
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const cell = Number(canvas.dataset.cell);
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return places.findIndex((place) => place && x >= place[0] && x < place[0] + cell && y >= place[1] && y < place[1] + cell);
  }
  canvas.addEventListener("pointermove", (event) => {
    const index = at(event);
    tip.hidden = index < 0;
    canvas.style.cursor = index < 0 ? "default" : "pointer";
    if (index < 0) return;
    tip.textContent = describe(shown[index]);
    tip.style.left = `${Math.min(places[index][0], heat.clientWidth - 220)}px`;
    tip.style.top = `${places[index][1] + Number(canvas.dataset.cell) + 4}px`;
  });
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("click", (event) => {
    const index = at(event);
    if (index >= 0) navigate(`/nodes/${encodeURIComponent(shown[index].name)}`);
  });
  canvas.addEventListener("keydown", (event) => {
    const across = Number(canvas.dataset.across);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -Infinity, End: Infinity };
    if (event.key === "Enter" && marked >= 0 && shown[marked]) navigate(`/nodes/${encodeURIComponent(shown[marked].name)}`);
    if (!(event.key in steps) || !shown.length) return;
    event.preventDefault();
    marked = marked < 0 ? 0 : Math.min(shown.length - 1, Math.max(0, marked + steps[event.key]));
    announce(describe(shown[marked]));
    drawHeat();
  });

  function drawPools() {
    const found = [...new Set([...store.nodes.values()].map((node) => node.pool))].filter(Boolean).sort();
    const text = JSON.stringify(found);
    if (text === pools) return;
    pools = text;
    replace(poolField, select("pool", "Pool", [["", "all"], ...found.map((name) => [name, name])], state.pool, set("pool")));
    const texts = new Set();
    for (const node of store.nodes.values()) node.labels.forEach((label) => texts.size < 300 && texts.add(label));
    replace(labels, [...texts].sort().map((label) => h("option", { value: label })));
  }

  function update() {
    drawPools();
    filter();
    if (marked >= shown.length) marked = -1;
    const words = shown.length === store.order.length ? plural(shown.length, "node") : `${count(shown.length)} of ${plural(store.order.length, "node")}`;
    if (summary.textContent !== words) summary.textContent = words;
    drawHeat();
    rows.update(shown.length);
    const why = !store.ready ? [] : store.order.length ? empty("No node matches.", "Clear the name, the pool or the label above.") : empty("This cluster has no nodes.", "koord up --nodes 3 starts one with simulated nodes; on a real cluster, kubectl get nodes should list some.");
    replace(nothing, shown.length ? [] : why);
  }
  const resized = new ResizeObserver(() => drawHeat());
  resized.observe(heat);
  return {
    element,
    update,
    close() {
      rows.close();
      resized.disconnect();
    },
  };
}
