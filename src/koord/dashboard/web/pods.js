// Pods: what waits and why, and all pods by name.

import { h, heading, nodeLink, podLink, replace, section, empty } from "/assets/dom.js";
import { bytes, cores, count, plural } from "/assets/format.js";
import { drawPending } from "/assets/overview.js";
import { virtualRows } from "/assets/rows.js";
import { report, store } from "/assets/store.js";

const WINDOW = 200;

export function open() {
  const query = new URLSearchParams(location.search);
  let words = query.get("words") || "";
  let windows = new Map(); // offset -> pods
  let asked = new Set();
  let total = 0;
  let known = false;
  let turn = 0;
  const pending = h("div");
  const summary = h("p", { class: "muted", role: "status" });
  const nothing = h("div");
  const rows = virtualRows({
    label: "Pods",
    columns: [
      { title: "Pod", width: "minmax(16rem, 2.4fr)" },
      { title: "Node", width: "minmax(8rem, 1.5fr)" },
      { title: "QoS", width: "4rem" },
      { title: "Tier", width: "4.5rem" },
      { title: "CPU used", width: "minmax(6rem, 1fr)", number: true },
      { title: "CPU requested", width: "minmax(7.5rem, 1fr)", number: true },
      { title: "Memory used", width: "minmax(7rem, 1fr)", number: true },
      { title: "Memory requested", width: "minmax(9.5rem, 1fr)", number: true },
    ],
    cells(index) {
      const offset = Math.floor(index / WINDOW) * WINDOW;
      if (!windows.has(offset)) load(offset);
      const pod = (windows.get(offset) || [])[index - offset];
      if (!pod) return null;
      const tier = pod.priority_class.replace(/^koord-/, "");
      return [podLink(`${pod.namespace}/${pod.name}`), nodeLink(pod.node), pod.qos || "-", tier ? h("span", { class: "tier-name" }, h("span", { class: `swatch tier-${tier === "free" ? "batch" : tier}` }), tier) : "-", pod.cpu_used === null ? "-" : cores(pod.cpu_used), cores(pod.cpu_requested), pod.memory_used === null ? "-" : bytes(pod.memory_used), bytes(pod.memory_requested)];
    },
  });
  const field = h("input", { id: "words", type: "search", value: words, placeholder: "part of namespace/name", size: 26 });
  field.addEventListener("input", () => {
    words = field.value;
    history.replaceState(null, "", words ? `/pods?${new URLSearchParams({ words })}` : "/pods");
    reload();
  });
  const element = h(
    "div",
    {},
    heading("Pods", "koord top pods"),
    section("Pending pods by reason", pending),
    h("section", { class: "card flush" }, h("h2", {}, "All pods"), h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, h("div", { class: "field" }, h("label", { for: "words" }, "Name"), field)), summary, nothing, rows.element),
  );

  async function load(offset) {
    if (asked.has(offset)) return;
    asked.add(offset);
    const mine = turn;
    try {
      const found = await report("pods", { words, offset, limit: WINDOW });
      if (mine !== turn) return;
      windows.set(offset, found.pods);
      [total, known] = [found.total, true];
      summary.textContent = plural(total, "pod");
      replace(nothing, total ? [] : words ? empty("No pod matches.", "Names match by their parts: web prod finds prod/web-1.") : empty("There are no pods.", "kubectl create deployment web --image=nginx makes one."));
      rows.update(total);
    } catch (error) {
      if (mine === turn) summary.textContent = error.message;
    }
  }

  function reload() {
    turn += 1;
    asked = new Set();
    const keep = [...windows.keys()];
    if (!keep.length) keep.push(0);
    const old = windows;
    windows = new Map(known ? [] : old);
    keep.slice(0, 3).forEach(load);
  }
  reload();
  const timer = setInterval(() => {
    if (document.hidden || store.lostAt) return;
    asked = new Set();
    [...windows.keys()].slice(-3).forEach(load);
  }, 5000);
  return {
    element,
    update: () => replace(pending, drawPending()),
    close() {
      clearInterval(timer);
      rows.close();
    },
  };
}
