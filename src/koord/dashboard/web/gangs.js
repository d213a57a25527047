// Gangs: how many members are there, bound and waiting, and what each waits for.

import { chip, empty, h, heading, link, nodeLink, podLink, replace, section, table, terms } from "/assets/dom.js";
import { count } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { bar } from "/assets/rows.js";
import { report } from "/assets/store.js";

function gangLink(full) {
  const cut = full.indexOf("/");
  return link(`/gangs/${encodeURIComponent(full.slice(0, cut))}/${encodeURIComponent(full.slice(cut + 1))}`, full);
}

function drawGangs(found) {
  if (!found.length) return empty("There are no gangs.", "A PodGroup, or pods with the annotation gang.scheduling.koordinator.sh/name, appear here.");
  return table(
    "Gangs",
    ["Gang", "Bound", ">Minimum", ">Members", ">Waiting", "State"],
    found.map((one) => ({ cells: [gangLink(one.name), bar(one.bound, one.minimum || one.members, "prod", `${one.bound} of ${one.minimum ?? "?"}`), one.minimum === null ? "?" : count(one.minimum), count(one.members), count(one.waiting), one.told] })),
  );
}

function drawGang(one) {
  return [
    terms([
      ["State", one.told],
      ["Members", `${one.members} of at least ${one.minimum ?? "?"}; ${one.bound} bound, ${one.waiting} waiting at their node`],
      ["Rules", `${one.mode}, ${one.policy}, members wait up to ${one.waitSeconds} s for each other`],
      ["Group", one.group.length > 1 ? one.group.join(", ") : ""],
      ["Warning", one.warning],
      ["Last try", one.lastFailure],
    ]),
    table("Members", ["Pod", "State", "Node", "Why"], one.standings.map((each) => ({ cells: [podLink(each.pod), chip(each.state, each.state === "bound" ? "good" : "warn"), each.node ? nodeLink(each.node) : "-", each.why] }))),
  ];
}

export function open([namespace, name]) {
  const full = name ? `${namespace}/${name}` : "";
  const body = h("div", {}, h("p", { class: "muted" }, "Asking koord-scheduler."));
  const read = () => (full ? report("gang", { namespace, name }) : report("gangs"));
  const running = poll(3, read, (found) => replace(body, found.failure ? empty("Gangs are the scheduler's knowledge, and it does not tell.", found.failure) : full ? drawGang(found) : drawGangs(found)));
  return { element: h("div", {}, heading(full || "Gangs", `koord gang${full ? ` ${full}` : ""}`), section("", body)), update() {}, close: () => running.close() };
}
