// Moves: evictions and migrations of all actors on one time line, with the rule and the measured value.

import { chip, empty, h, heading, nodeLink, podLink, replace, section, svg } from "/assets/dom.js";
import { ago, clock, seconds } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { now, report } from "/assets/store.js";

const OUTCOMES = { evicted: "good", failed: "bad", refused: "warn", Succeeded: "good", Failed: "bad", Aborted: "bad", Running: "warn", Pending: "warn" };
const SHOWN = 200;

function ofEviction(one) {
  return {
    kind: "eviction",
    time: seconds(one.time) || 0,
    actor: one.actor,
    rule: one.rule,
    pod: `${one.namespace}/${one.name}`,
    from: one.node || "",
    to: "",
    measured: one.measured || "",
    threshold: one.threshold || "",
    why: one.whyThisPod || one.reason || "",
    outcome: one.outcome || "requested",
    detail: one.detail || "",
    count: one.count || 1,
  };
}

function ofMigration(one) {
  return {
    kind: "migration",
    time: seconds(one.created) || 0,
    actor: one.asked_by,
    rule: one.mode,
    pod: one.pod,
    from: one.source,
    to: one.target,
    measured: "",
    threshold: "",
    why: one.reason,
    outcome: one.phase || "Pending",
    detail: one.blocked || one.ended,
    count: 1,
  };
}

function drawMove(one) {
  const bad = OUTCOMES[one.outcome] === "bad";
  return h(
    "li",
    { class: `${one.kind} ${bad ? "failed" : ""}` },
    h(
      "div",
      { class: "move-head" },
      h("time", { datetime: new Date(one.time * 1000).toISOString() }, one.time ? `${clock(one.time, true)}, ${ago(one.time, now())}` : "at an unknown time"),
      chip(one.kind),
      podLink(one.pod),
      one.from ? [" from ", nodeLink(one.from)] : null,
      one.to ? [" to ", nodeLink(one.to)] : null,
      chip(one.count > 1 ? `${one.outcome} x${one.count}` : one.outcome, OUTCOMES[one.outcome]),
    ),
    h("div", {}, h("b", {}, one.actor || "unknown actor"), `, rule ${one.rule || "unknown"}`, one.measured ? `: measured ${one.measured}` : "", one.threshold ? `, threshold ${one.threshold}` : ""),
    one.why || one.detail ? h("div", { class: "muted" }, [one.why, one.detail].filter(Boolean).join("; ")) : null,
  );
}

// One lane for each actor, a mark for each move: bursts and who caused them are seen at once.
function drawStrip(moves) {
  const timed = moves.filter((one) => one.time);
  if (timed.length < 2) return null;
  const actors = [...new Set(timed.map((one) => one.actor))];
  const [first, last] = [Math.min(...timed.map((one) => one.time)), Math.max(now(), ...timed.map((one) => one.time))];
  const [width, lane, left] = [1000, 26, 170];
  const x = (time) => left + ((time - first) / (last - first || 1)) * (width - left - 20);
  return svg(
    "svg",
    { class: "strip chart", viewBox: `0 0 ${width} ${actors.length * lane + 22}`, role: "img", "aria-label": `${timed.length} moves of ${actors.join(", ")} from ${clock(first)} to ${clock(last)}` },
    actors.map((actor, at) => [svg("line", { class: "grid", x1: left, x2: width, y1: at * lane + 14, y2: at * lane + 14 }), svg("text", { class: "tick", x: 0, y: at * lane + 18 }, actor)]),
    timed.map((one) => svg("circle", { class: one.kind === "migration" ? "tier-mid" : "tier-batch", cx: x(one.time), cy: actors.indexOf(one.actor) * lane + 14, r: 5 })),
    svg("text", { class: "tick", x: left, y: actors.length * lane + 16 }, clock(first, true)),
    svg("text", { class: "tick", x: width, y: actors.length * lane + 16, "text-anchor": "end" }, clock(last, true)),
  );
}

export function open() {
  const body = h("div", {}, h("p", { class: "muted" }, "Reading."));
  let evictions = null;
  let migrations = null;

  function draw() {
    if (evictions === null || migrations === null) return;
    const moves = [...(evictions.records || []).map(ofEviction), ...(migrations.migrations || []).map(ofMigration)].sort((a, b) => b.time - a.time);
    const silent = [...(evictions.silent || []), evictions.failure, migrations.failure, migrations.note].filter(Boolean);
    replace(
      body,
      silent.map((text) => h("p", { class: "note" }, `Not asked: ${text}`)),
      moves.length
        ? [
            h("ul", { class: "legend" }, h("li", {}, h("span", { class: "swatch tier-batch" }), "eviction"), h("li", {}, h("span", { class: "swatch tier-mid" }), "migration")),
            drawStrip(moves),
            h("ol", { class: "timeline" }, moves.slice(0, SHOWN).map(drawMove)),
            moves.length > SHOWN ? h("p", { class: "muted" }, `The last ${SHOWN} of ${moves.length}; koord evictions -A prints all.`) : null,
          ]
        : empty("Nothing was evicted or moved.", "Evictions by preemption, quotas, the descheduler and node agents appear here, and PodMigrationJobs. A cluster keeps events for an hour. koord migrate pod NAMESPACE/NAME moves one."),
    );
  }
  const polls = [
    poll(3, () => report("evictions"), (found) => ((evictions = found), draw())),
    poll(3, () => report("migrations"), (found) => ((migrations = found), draw())),
  ];
  return {
    element: h("div", {}, heading("Moves", "koord evictions -A", h("p", { class: "command" }, h("code", {}, "koord migrations"))), section("", body)),
    update() {},
    close: () => polls.forEach((one) => one.close()),
  };
}
