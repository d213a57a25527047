// One node: what it lends and by which terms, who holds its CPUs and devices, and what its agent set.

import { chip, empty, h, heading, nodeLink, podLink, replace, section, table, terms } from "/assets/dom.js";
import { ago, amount, bytes, clock, cores, count, duration, percent, plural, shortName } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { tierBar } from "/assets/rows.js";
import { now, report, store, tiers, USE } from "/assets/store.js";

const STATES = {
  UpToDate: ["up to date", "good"],
  WithinThreshold: ["close enough", "warn"],
  WriteDue: ["a write is due", "warn"],
  Withheld: ["not lent", "bad"],
  NoCapacity: ["not written", "bad"],
  NotComputed: ["not computed", "bad"],
};
const SIGNS = { "": "", "+": "+", "-": "−", min: "≤", x: "×", "=": "=" };
const COLOURS = 8;

function failure(found) {
  return h("p", { class: "muted" }, found.failure);
}

// A part of the page with its own report: asked for while it is open, or at once where `always` is set.
function part(title, command, everySeconds, read, draw, always) {
  const body = h("div", {}, h("p", { class: "muted" }, "Asking."));
  let running = null;
  const begin = () => (running = running || poll(everySeconds, read, (found) => replace(body, found.failure ? failure(found) : draw(found))));
  const said = h("p", { class: "command" }, h("code", {}, command));
  if (always) {
    begin();
    return { element: section(title, said, body), close: () => running.close() };
  }
  const details = h("details", { ontoggle: () => details.open && begin() }, h("summary", {}, title), said, body);
  return { element: details, close: () => running && running.close() };
}

function drawLending({ account, history }) {
  const settings = account.settings;
  const layers = ["the cluster", settings.nodeConfig && `nodeConfig ${settings.nodeConfig}`, settings.annotation && "an annotation of the node", settings.labels.length && "labels of the node"].filter(Boolean);
  const told = account.report;
  const age = told.ageSeconds === null ? told.flaw || "none" : `${duration(told.ageSeconds)} ago, ${told.flaw ? `of no use: ${told.flaw}` : `good for another ${duration(told.goodForSeconds)}`}`;
  return [
    terms([
      ["Co-location", settings.clusterEnabled ? `${settings.enabled ? "on" : "off for this node"}, by ${layers.join(", ")}` : "off for the cluster"],
      ["Ignored", settings.ignored],
      ["Report", age],
    ]),
    h("div", { class: "grid2" }, account.lines.map(drawLine)),
    account.estimated.length ? h("p", { class: "muted" }, `Without a sample, so their requests are counted: ${account.estimated.slice(0, 5).join(", ")}${account.estimated.length > 5 ? ` and ${account.estimated.length - 5} more` : ""}`) : null,
    account.gone.length ? h("p", { class: "muted" }, `Gone from the node and still in its report: ${account.gone.slice(0, 5).join(", ")}`) : null,
    h("h3", {}, "Last changes"),
    drawHistory(history),
  ];
}

function drawLine(line) {
  const [state, kind] = STATES[line.state] || [line.state, ""];
  const rows = (line.sum ? line.sum.terms : []).map((term) => ({
    className: "faint",
    cells: [SIGNS[term.sign] ?? term.sign, term.name, amount(line.resource, term.amount), [term.note, term.of === null ? "" : ` of ${amount(line.resource, term.of)}`]],
  }));
  rows.push({ className: "sum", cells: ["=", "computed now", amount(line.resource, line.computed), line.sum ? `decided by: ${line.sum.binding}` : ""] });
  rows.push({ cells: ["", "on the node", amount(line.resource, line.shown), [chip(state, kind), " ", line.why]] });
  return h("div", {}, h("h3", {}, shortName(line.resource)), table(shortName(line.resource), ["Sign", "Term", ">Amount", "Remark"], rows));
}

// Each resource's own reasons, where there are some: a change writes all of them at once.
function reasonsFor(resource, reasons) {
  const own = reasons.filter((reason) => reason.startsWith(`${resource} `)).map((reason) => reason.slice(resource.length + 1));
  return (own.length ? own : reasons).join("; ");
}

function heldDevices(devices) {
  const parts = Object.entries(devices).flatMap(([kind, minors]) => Object.entries(minors).map(([minor, amounts]) => `${kind} ${minor}: ${Object.entries(amounts).map(([name, units]) => `${shortName(name).replace("koordinator.sh/", "")} ${/core$|ratio$/.test(name) ? `${units}\u00a0%` : amount(name, units)}`).join(", ")}`));
  return parts.join("; ");
}

function drawHistory(history) {
  if (history.unavailable) return h("p", { class: "muted" }, `Unavailable: ${history.unavailable}`);
  const rows = [];
  for (const change of history.changes) {
    for (const [resource, after] of Object.entries(change.after)) {
      const before = change.before[resource];
      if (before === after) continue;
      const moved = change.moved.filter((one) => one.resource === resource).map((one) => `${one.term} ${one.after > one.before ? "+" : "−"}${amount(resource, Math.abs(one.after - one.before))}`);
      rows.push({ cells: [clock(change.at, true), shortName(resource), amount(resource, before), amount(resource, after), change.withheld || moved.join(", ") || reasonsFor(resource, change.reasons)] });
    }
  }
  return rows.length ? table("Last changes", ["Changed", "Resource", ">From", ">To", "Moved by"], rows) : h("p", { class: "muted" }, "None since koord-manager started.");
}

// Colours go by the order of holders; the letter in each square tells them apart without colour.
function holderClass(mark, holders, special) {
  if (special[mark]) return special[mark];
  const at = holders.findIndex((holder) => holder.mark === mark);
  return at < 0 ? "held-free" : `held-${at % COLOURS}`;
}

const CPU_MARKS = { ".": "held-free", "#": "held-reserved", "!": "held-twice" };
const CPU_WORDS = { ".": "free for all", "#": "reserved for the system", "!": "held twice" };

// NUMA nodes below the socket that they lie on; a NUMA node may span several, and an unreadable topology names none.
function bySocket(zones) {
  const groups = new Map();
  for (const zone of zones) {
    const title = zone.sockets.length ? `Socket${zone.sockets.length > 1 ? "s" : ""} ${zone.sockets.join(", ")}` : "Socket unknown";
    groups.set(title, [...(groups.get(title) || []), zone]);
  }
  return [...groups];
}

function drawZone(zone, holders) {
  const left = Object.entries(zone.amounts).filter(([, units]) => units).map(([resource, units]) => `${shortName(resource)} ${amount(resource, zone.left[resource] || 0)} of ${amount(resource, units)}`);
  const owner = (mark) => (holders.find((holder) => holder.mark === mark) || { name: CPU_WORDS[mark] || "others" }).name;
  return h(
    "div",
    { class: "numa-node" },
    h("h4", {}, `NUMA node ${zone.number}`),
    h("p", { class: "muted" }, `CPUs ${zone.cpus || "unknown"}${left.length ? `; left: ${left.join(", ")}` : ""}`),
    h(
      "div",
      { class: "cpus", role: "img", "aria-label": `${plural(zone.cores.length, "core")}, free CPUs: ${zone.free || "none"}` },
      zone.cores.map((core, place) =>
        h("span", { class: "core" }, [...core].map((mark, at) => h("span", { class: `cpu ${holderClass(mark, holders, CPU_MARKS)}`, title: `CPU ${zone.coreCpus[place][at]}: ${owner(mark)}` }, mark === "." ? "" : mark))),
      ),
    ),
  );
}

function drawCpus(found) {
  if (!found.zones.length) return empty("The topology of this node is unknown.", "Its koordlet reports it as a NodeResourceTopology.");
  return [
    terms([["CPU bind policy", found.bindPolicy], ["NUMA topology policy", found.numaPolicy], ["Shared by all", found.shared], ["Reserved", found.kept]]),
    bySocket(found.zones).map(([socket, zones]) => h("div", { class: "socket" }, h("h3", {}, socket), h("div", { class: "numa-nodes" }, zones.map((zone) => drawZone(zone, found.holders))))),
    h("ul", { class: "legend" }, Object.entries(CPU_MARKS).map(([mark, kind]) => h("li", {}, h("span", { class: `swatch ${kind}` }), CPU_WORDS[mark]))),
    h("p", { class: "muted" }, "CPUs that touch are hyper-threads of one core."),
    found.holders.length
      ? table("Holders of CPUs", ["Mark", "Holder", ">CPUs", "List", "NUMA nodes"], found.holders.map((holder) => ({ cells: [h("span", { class: `cpu swatch ${holderClass(holder.mark, found.holders, {})}` }, holder.mark), holder.reservation ? `reservation ${holder.name}` : podLink(holder.name), count(holder.count), `${holder.cpus || "shared"}${holder.exclusive && holder.exclusive !== "None" ? ` (${holder.exclusive})` : ""}`, Object.keys(holder.zones).join(", ") || "-"] })))
      : h("p", { class: "muted" }, "Nobody has CPUs or NUMA nodes of its own here."),
    found.flaws.map((flaw) => h("p", { class: "error" }, flaw)),
  ];
}

function drawDevices(found) {
  const special = { ".": "held-free", "x": "held-unhealthy" };
  return [
    h("p", {}, `${found.vendor || "unknown vendor"} ${found.model || ""}`),
    found.groups.map((group) => [
      h("h3", {}, `NUMA node ${group.numa ?? "unknown"}, PCIe ${group.pcie || "unknown"}`),
      group.places.map((place) =>
        h("span", { class: "device" }, `${place.type} ${place.minor}`, h("span", { class: "cells", role: "img", "aria-label": `${place.used_percent} % used` }, [...place.cells].map((mark) => h("span", { class: `cell ${place.healthy ? holderClass(mark, found.holders, special) : "held-unhealthy"}` }, mark === "." ? "" : mark))), `${place.used_percent} %`, place.functions ? ` ${place.functions_used}/${place.functions} VFs` : "", place.healthy ? null : [" ", chip("not healthy", "bad")]),
      ),
    ]),
    found.holders.length ? table("Holders of devices", ["Mark", "Holder", "Devices", "Functions"], found.holders.map((holder) => ({ cells: [h("span", { class: `cpu swatch ${holderClass(holder.mark, found.holders, {})}` }, holder.mark), holder.reservation ? `reservation ${holder.name}` : podLink(holder.name), heldDevices(holder.devices), holder.functions.join(", ") || "-"] }))) : h("p", { class: "muted" }, "Nobody holds devices here."),
    found.flaws.map((flaw) => h("p", { class: "error" }, flaw)),
  ];
}

function drawPods(found) {
  if (!found.pods.length) return empty("No pod is on this node.");
  const rows = found.pods.map((pod) => ({
    cells: [podLink(`${pod.namespace}/${pod.name}`), pod.qos || "-", pod.priority_class.replace(/^koord-/, "") || "-", pod.cpu_used === null ? "-" : cores(pod.cpu_used), cores(pod.cpu_requested), pod.memory_used === null ? "-" : bytes(pod.memory_used), bytes(pod.memory_requested)],
  }));
  return table("Pods on this node", ["Pod", "QoS", "Tier", ">CPU used", ">CPU requested", ">Memory used", ">Memory requested"], rows);
}

function drawContainers(found) {
  if (!found.containers.length) return empty("The agent decided no value here.");
  return found.containers.map((one) => [
    h("h3", {}, `${one.namespace}/${one.pod}${one.container ? `, container ${one.container}` : `, ${one.level}`}`),
    table(one.group, ["File", "Wanted", "Kernel", "Decided by", "Why", "Written"], one.values.map((value) => ({ className: value.differs ? "bad" : null, cells: [h("code", {}, value.knob), value.wanted, value.kernel ?? "?", value.decidedBy, [value.why, value.problem ? ` (${value.problem})` : ""], value.writtenAt ? ago(value.writtenAt, now()) : "-"] }))),
  ]);
}

function drawHooks({ hooks }) {
  return [
    hooks.connections.map((way) => h("p", {}, chip(way.state, way.connected ? "good" : "bad"), ` ${way.name}, since ${way.since ? ago(way.since, now()) : "never"}`)),
    table("Hooks", ["Hook", "State", ">Pods", ">Containers", "Last applied", ">Failures"], hooks.hooks.map((hook) => ({ className: hook.failures ? "bad" : hook.enabled ? null : "faint", cells: [hook.name, hook.enabled ? "on" : `off: ${hook.whyOff}`, count(hook.pods), count(hook.containers), hook.lastApplied ? ago(hook.lastApplied, now()) : "never", count(hook.failures)] }))),
  ];
}

function drawCapabilities(found) {
  const kinds = { supported: "good", degraded: "warn", rejected: "bad" };
  return table("Capabilities", ["File", "State", "Used by", "How"], found.map((row) => ({ cells: [h("code", {}, row.knob), chip(row.state, kinds[row.state]), row.strategies.join(", ") || "-", row.how] })));
}

export function open([name]) {
  const facts = h("div");
  const at = { name };
  const parts = [
    part("What it lends, term by term", `koord explain node ${name}`, 5, () => report("node", at), drawLending, true),
    part("CPUs and who holds them", `koord node cpus ${name}`, 5, () => report("cpus", at), drawCpus, true),
    part("Devices and partitions", `koord node devices ${name}`, 5, () => report("devices", at), drawDevices, true),
    part("Pods", `koord top pods --node ${name}`, 5, () => report("pods", { node: name, limit: 500 }), drawPods, true),
  ];
  const more = [
    part("Cgroup values and who set them", "koord explain container POD", 10, () => report("containers", at), drawContainers),
    part("Runtime hooks", `koord node hooks ${name}`, 10, () => report("hooks", at), drawHooks),
    part("Capabilities of the kernel", `koord node capabilities ${name}`, 30, () => report("capabilities", at), drawCapabilities),
  ];
  const element = h("div", {}, heading(name, `koord explain node ${name}`), facts, parts.map((one) => one.element), section("What its agent does", more.map((one) => one.element)));

  function update() {
    const node = store.nodes.get(name);
    if (!node) {
      replace(facts, store.ready ? empty(`There is no node ${name}.`, h("span", {}, "It may have been removed. ", h("a", { href: "/nodes", "data-link": true }, "All nodes"))) : []);
      return;
    }
    const known = node.reported !== null;
    const use = (of, format) => (known ? tierBar(tiers(of), of[USE.capacity], `${percent(of[USE.used], of[USE.capacity])} of ${format(of[USE.capacity])} used`) : `${format(of[USE.capacity])}, use unknown`);
    replace(
      facts,
      section(
        "",
        h("div", { class: "chips" }, chip(node.ready ? "ready" : "not ready", node.ready ? "good" : "bad"), node.schedulable ? null : chip("cordoned", "warn"), node.pool ? chip(`pool ${node.pool}`) : null),
        terms([["CPU", use(node.cpu, cores)], ["Memory", use(node.memory, bytes)], ["Pods", count(node.pods)], ["Last report", ago(node.reported, now())]]),
        h("details", { "data-key": "labels" }, h("summary", {}, plural(node.labels.length, "label")), h("div", { class: "chips" }, node.labels.map((label) => chip(label)))),
      ),
    );
  }
  return { element, update, close: () => [...parts, ...more].forEach((one) => one.close()) };
}
