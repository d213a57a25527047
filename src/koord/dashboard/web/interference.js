// Interference: which containers run worse than their own past, which batch pod disturbs them, and what was done.

import { chip, empty, h, heading, nodeLink, podLink, replace, section, table } from "/assets/dom.js";
import { ago, count, digits } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { now, report } from "/assets/store.js";

function drawIncident(node, one) {
  return {
    cells: [
      one.ended ? chip("over", "") : chip("disturbed", "bad"),
      [podLink(`${one.namespace}/${one.pod}`), ` ${one.container}`],
      nodeLink(node),
      `${one.metric} ${digits(one.value)}, normal ${digits(one.mean)} ± ${digits(one.deviation)}, threshold ${digits(one.threshold)}`,
      one.culprit ? podLink(one.culprit) : "none named",
      `${one.action}: ${one.outcome || "not decided yet"}`,
      one.ended ? `ended ${ago(one.ended, now())}` : ago(one.since, now()),
    ],
  };
}

function draw(found) {
  const incidents = [];
  const nodes = [];
  for (const { node, interference, problem } of found) {
    if (!interference || !interference.enabled) {
      nodes.push({ className: "faint", cells: [nodeLink(node), "-", "-", "-", problem || (interference ? interference.why : "")] });
      continue;
    }
    nodes.push({ cells: [nodeLink(node), count(interference.watched), count(interference.learning), interference.action, interference.why || (interference.incidents.length ? `${interference.incidents.length} disturbed` : "none disturbed")] });
    for (const one of [...interference.incidents, ...interference.ended]) incidents.push([one.since, drawIncident(node, one)]);
  }
  const off = nodes.length && nodes.every((row) => row.className);
  incidents.sort((a, b) => (a[0] < b[0] ? 1 : -1));
  return [
    section(
      "Incidents",
      incidents.length
        ? table("Incidents", ["State", "Container", "Node", "Measured", "Culprit", "Action", "Since"], incidents.map((pair) => pair[1]))
        : off
          ? empty("Nobody looks for interference.", "The koordlets' gate InterferenceDetection switches it on: koord up --set koordlet.feature-gates=InterferenceDetection=true")
          : empty("No container is disturbed.", "Each container is compared with its own past; a batch pod whose CPU use follows the disturbance is named as the culprit."),
    ),
    section("Nodes", table("Nodes", ["Node", ">Watched", ">Learning", "Action", "State"], nodes)),
  ];
}

export function open() {
  const body = h("div", {}, h("p", { class: "muted" }, "Asking the agents of all nodes."));
  const running = poll(10, () => report("interference"), (found) => replace(body, found.failure ? section("", empty("No agent answers.", found.failure)) : draw(found)));
  return { element: h("div", {}, heading("Interference", "koord explain interference"), body), update() {}, close: () => running.close() };
}
