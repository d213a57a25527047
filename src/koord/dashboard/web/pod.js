// One pod: what the scheduler decided and why, and what it would decide on a changed pod.

import { chip, empty, h, heading, nodeLink, podLink, replace, section, table, terms } from "/assets/dom.js";
import { amounts, clock, count, duration, plural } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { ask, report } from "/assets/store.js";

const STATES = { bound: "good", ended: "good", unschedulable: "bad", "backing-off": "bad", gated: "warn", waiting: "warn", "not-ours": "warn" };

function nearMiss(miss) {
  const short = Object.keys(miss.lacking).length ? `, short of ${amounts(miss.lacking)}` : "";
  return [nodeLink(miss.node), `: ${miss.reasons.join(", ")}${short}`, miss.details.map((one) => `; ${one}`)];
}

// The table of one attempt: refusals by plugin, the nearest node, victims, and how the best nodes scored.
export function drawAttempt(last) {
  const plugins = last.ranking.length ? Object.keys(last.ranking[0].scores).filter((name) => last.ranking.some((one) => one.scores[name])) : [];
  return [
    last.refusals.length
      ? table("Why nodes were refused", [">Nodes", "Plugin", "Reason", "For example"], last.refusals.map((one) => ({ cells: [one.nodes ? count(one.nodes) : "", one.plugin, one.reason, h("span", { class: "links" }, one.examples.slice(0, 3).map((name) => nodeLink(name)))] })))
      : null,
    last.nearest ? h("p", {}, h("b", {}, "Nearest "), nearMiss(last.nearest)) : null,
    last.searches
      .filter((search) => search.nodes)
      .map((search) => h("p", {}, h("b", {}, "Victims "), `${search.plugin} looked for some on ${plural(search.nodes, "node")}, found them on ${search.candidates}`)),
    last.victims.length ? h("p", {}, h("b", {}, "To make way "), h("span", { class: "links" }, last.victims.map((name) => podLink(name)))) : null,
    last.ranking.length ? [h("p", {}, `It fits on ${plural(last.feasible, "node")}. The best, by score:`), table("Scores", ["Node", ">Total", ...plugins.map((name) => `>${name}`)], last.ranking.map((one) => ({ cells: [nodeLink(one.node), count(one.total), ...plugins.map((name) => count(one.scores[name] || 0))] })))] : null,
  ];
}

function drawPod(found) {
  return [
    terms([
      ["State", chip(found.state, STATES[found.state])],
      ["In short", found.headline],
      ["Scheduler", found.scheduler],
      ["Node", found.node ? nodeLink(found.node) : ""],
      ["Gates", found.gates.join(", ")],
      ["Promised", found.nominated ? [nodeLink(found.nominated), ", where pods are making way for it"] : ""],
      ["Waiting", found.queuedForS === null ? "" : `for ${duration(found.queuedForS)}, ${plural(found.attempts, "attempt")}`],
      ["Looked at again after", found.wakesOn.join(", ")],
    ]),
    found.last ? [h("h3", {}, `Last attempt, number ${found.last.number}, at ${clock(found.last.at, true)}, decided in ${found.last.tookMs.toFixed(1)} ms`), drawAttempt(found.last)] : null,
  ];
}

function drawOutcome(one) {
  const [text, kind] = one.node
    ? ["would go to a node", "good"]
    : one.afterEvictionOn
      ? ["would go once others made way", "warn"]
      : one.waitingOn
        ? ["would be held at its node", "warn"]
        : one.gatedBy
          ? ["would be held back", "warn"]
          : ["would go nowhere", "bad"];
  const node = one.node || one.afterEvictionOn || one.waitingOn;
  return h("div", {}, h("h3", {}, one.pod), h("p", {}, chip(text, kind), " ", node ? nodeLink(node) : "", " ", one.message), one.attempt ? drawAttempt(one.attempt) : null);
}

export function open([namespace, name]) {
  const full = name ? `${namespace}/${name}` : namespace;
  const query = { namespace, name: name || "" };
  const body = h("div", {}, h("p", { class: "muted" }, "Asking koord-scheduler."));
  const result = h("div", { "aria-live": "polite" });
  const manifest = h("textarea", { id: "manifest", spellcheck: "false", autocomplete: "off" });
  const run = h("button", { type: "submit", class: "primary" }, "Run what-if");
  const form = h(
    "form",
    {},
    h("p", { class: "muted" }, "Change the pod and see where it would go. The API server only checks it (a dry run): nothing is created, changed or evicted."),
    h("label", { for: "manifest" }, "Manifest, JSON or YAML"),
    manifest,
    h("p", {}, run),
    result,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    run.disabled = true;
    replace(result, h("p", { class: "muted" }, "Deciding."));
    try {
      const outcomes = await ask("/api/what-if", { method: "POST", headers: { "Content-Type": "application/yaml" }, body: manifest.value });
      replace(result, outcomes.map(drawOutcome));
    } catch (error) {
      replace(result, h("p", { class: "error" }, error.message));
    }
    run.disabled = false;
  });
  const running = poll(3, () => report("pod", query), (found) => replace(body, found.failure ? empty("The scheduler has nothing to tell.", found.failure) : drawPod(found)));
  report("manifest", query).then(
    (found) => (manifest.value = JSON.stringify(found, null, 2)),
    (error) => (manifest.placeholder = error.message),
  );
  return {
    element: h("div", {}, heading(full, `koord explain pod ${full}`), section("Where it is, and why", body), section("What if", h("p", { class: "command" }, h("code", {}, "koord simulate -f FILE")), form)),
    update() {},
    close: () => running.close(),
  };
}
