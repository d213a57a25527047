// Overview: who uses the cluster's CPU and memory over time, what is reclaimed, what waits and what moves.

import { timeChart } from "/assets/chart.js";
import { empty, h, heading, link, podLink, replace, section, table } from "/assets/dom.js";
import { bytes, clock, cores, count, digits, duration, percent, plural, seconds } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { now, report, store, tiers, USE } from "/assets/store.js";

const ACTIVE = new Set(["Pending", "Running", ""]);
const HOUR_S = 3600;
const GAPS_S = { recent: 30, day: 300 }; // between two samples: more is a time that nobody watched

// A node's use is an average over minutes, with pods that are gone by now and little of those that just started.
function idle(use) {
  return Math.max(0, use[USE.capacity] - tiers(use).reduce((sum, [, units]) => sum + units, 0));
}

function requested(use) {
  return use[USE.prodRequested] + use[USE.midRequested] + use[USE.batchRequested];
}

// A sample is [time, cpu, memory, pending].
function chartOf(title, place, format, axis, binary) {
  return timeChart({
    title,
    format,
    axis,
    binary,
    areas: [
      { key: "prod", title: "prod", value: (sample) => sample[place][USE.prodUsed] },
      { key: "mid", title: "mid", value: (sample) => sample[place][USE.midUsed] },
      { key: "batch", title: "batch", value: (sample) => sample[place][USE.batchUsed] },
      { key: "system", title: "system", value: (sample) => sample[place][USE.systemUsed] },
      { key: "idle", title: "idle", value: (sample) => idle(sample[place]) },
    ],
    lines: [
      { key: "requested", title: "requested", value: (sample) => requested(sample[place]) },
      { key: "capacity", title: "capacity", value: (sample) => sample[place][USE.capacity] },
    ],
  });
}

// What was reclaimed while no dashboard ran is not known.
function reclaimedSince() {
  const { since, missedSeconds } = store.reclaimed;
  if (!since) return "";
  return `core hours since ${clock(since)}${missedSeconds >= 60 ? `, without ${duration(missedSeconds)} that nobody watched` : ""}`;
}

function withUnit(value, unit) {
  return [digits(value), h("small", {}, ` ${unit}`)];
}

function card(title, value, note, href) {
  const body = [h("span", { class: "figure-title" }, title), h("span", { class: "figure" }, value), h("span", { class: "figure-note" }, note)];
  return href ? link(href, body, { class: "kpi" }) : h("div", { class: "kpi" }, body);
}

export function open() {
  const cards = h("div", { class: "kpis" });
  const pending = h("div");
  const notes = h("div");
  const cpu = chartOf("CPU", 1, cores, (value) => digits(value / 1000));
  const memory = chartOf("Memory", 2, bytes, (value) => bytes(value).replace("iB", "i").replace("\u00a0", ""), true);
  let range = "recent";
  let evictions = null;
  let migrations = null;
  const choice = h(
    "div",
    { class: "choice", role: "group", "aria-label": "Time shown" },
    [["recent", "1 hour"], ["day", "24 hours"]].map(([key, title]) =>
      h("button", { type: "button", "data-range": key, "aria-pressed": key === range, onclick: () => ((range = key), update()) }, title),
    ),
  );
  const element = h(
    "div",
    {},
    heading("Overview", "koord top nodes", choice),
    notes,
    cards,
    h("div", { class: "charts" }, h("section", { class: "card" }, cpu.element), h("section", { class: "card" }, memory.element)),
    section("Pending pods by reason", pending),
  );
  const polls = [
    poll(10, () => report("evictions"), (found) => ((evictions = found), update())),
    poll(10, () => report("migrations"), (found) => ((migrations = found), update())),
  ];

  function update() {
    for (const button of choice.children) button.setAttribute("aria-pressed", button.dataset.range === range);
    const use = store.sums.cpu;
    const reclaimed = use[USE.midUsed] + use[USE.batchUsed];
    const lent = use[USE.midLent] + use[USE.batchLent];
    const recentEvictions = evictions && evictions.records ? evictions.records.filter((one) => now() - (seconds(one.time) || 0) < HOUR_S && one.outcome === "evicted") : null;
    const moving = migrations && migrations.migrations ? migrations.migrations.filter((one) => ACTIVE.has(one.phase)).length : null;
    replace(
      cards,
      card("Reclaimed now", withUnit(reclaimed / 1000, "cores"), `used by mid and batch, of ${cores(lent)} lent`),
      card("Reclaimed today", withUnit(store.reclaimed.coreSeconds / 3600, "core h"), reclaimedSince()),
      card("CPU in use", percent(use[USE.used], use[USE.capacity]), `${digits(use[USE.used] / 1000)} of ${cores(use[USE.capacity])}, ${percent(requested(use), use[USE.capacity])} requested`, "/nodes"),
      card("Memory in use", percent(store.sums.memory[USE.used], store.sums.memory[USE.capacity]), `of ${bytes(store.sums.memory[USE.capacity])}`, "/nodes"),
      card("Pending pods", count(store.pendingCount), `${plural(store.order.length, "node")}, ${plural(store.pods, "pod")} on them`, "/pods"),
      card("Evictions", recentEvictions ? count(recentEvictions.length) : "-", "in the last hour", "/moves"),
      card("Migrations", moving === null ? "-" : count(moving), "under way", "/moves"),
    );
    replace(notes, store.notes.map((note) => h("p", { class: "note" }, note)));
    cpu.update(store[range], GAPS_S[range]);
    memory.update(store[range], GAPS_S[range]);
    replace(pending, drawPending());
  }

  return {
    element,
    update,
    close() {
      cpu.close();
      memory.close();
      polls.forEach((one) => one.close());
    },
  };
}

export function drawPending() {
  if (!store.ready) return h("p", { class: "muted" }, "Reading the cluster.");
  if (!store.order.length && !store.pending.length) {
    return empty("This cluster has no nodes and no pods.", "koord up starts one with three simulated nodes; kubectl create deployment web --image=nginx gives it work.");
  }
  if (!store.pending.length) return empty("No pod is pending.", "Every pod that asked for a node has one.");
  return table(
    "Pending pods by reason",
    [">Pods", "Reason", "Waiting for up to", "For example"],
    store.pending.map((group) => ({
      cells: [count(group.count), group.reason, duration(now() - group.oldest), h("span", { class: "links" }, group.examples.map((one) => podLink(one)))],
    })),
  );
}

