// Reservations: which room is kept for whom, who holds it and who waits.

import { chip, empty, h, heading, nodeLink, podLink, replace, section, table } from "/assets/dom.js";
import { amount, amounts, duration, seconds, shortName } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { bar } from "/assets/rows.js";
import { now, report } from "/assets/store.js";

const KINDS = { Available: "good", Pending: "warn", Failed: "bad" };

function held(one) {
  return Object.entries(one.reserved)
    .filter(([, units]) => units)
    .map(([name, units]) => bar(units - (one.left[name] || 0), units, "prod", `${shortName(name)}: ${amount(name, units - (one.left[name] || 0))} of ${amount(name, units)}`));
}

function draw(found) {
  if (!found.length) return empty("There are no reservations.", "A Reservation in the cluster, or a migration that reserves first, appears here.");
  return table(
    "Reservations",
    ["Name", "Phase", "Node", "Held of what is reserved", "Left", "Held by", "Waiting", "Ends in"],
    found.map((one) => ({
      cells: [
        [h("b", {}, one.name), one.message ? h("p", { class: "muted" }, one.message) : null],
        chip(one.phase || "Pending", KINDS[one.phase]),
        nodeLink(one.node),
        held(one),
        amounts(one.left),
        one.holders.length ? h("span", { class: "links" }, one.holders.map((part) => podLink(part.pod))) : "nobody",
        one.waiting.length ? one.waiting.map((each) => h("p", {}, podLink(each.pod), each.why ? ` ${each.why}` : "")) : "-",
        one.phase !== "Available" ? "-" : one.ends === null ? "never" : duration(seconds(one.ends) - now()),
      ],
    })),
  );
}

export function open() {
  const body = h("div", {}, h("p", { class: "muted" }, "Reading."));
  const running = poll(3, () => report("reservations"), (found) => replace(body, found.failure ? empty("Reservations cannot be read.", found.failure) : draw(found)));
  return { element: h("div", {}, heading("Reservations", "koord reservation"), section("", body)), update() {}, close: () => running.close() };
}
