// Quotas: the tree with min, used, runtime and max as bars, and who lends to whom.

import { chip, empty, h, heading, podLink, replace, section, table } from "/assets/dom.js";
import { ago, amount, amounts, shortName, UNLIMITED } from "/assets/format.js";
import { poll } from "/assets/poll.js";
import { now, report } from "/assets/store.js";

function share(units, whole) {
  return `${Math.min(100, (100 * (units || 0)) / (whole || 1)).toFixed(1)}%`;
}

function quotaBar(one, resource) {
  const [min, used, runtime, cap] = ["guaranteed", "used", "entitled", "cap"].map((key) => one[key][resource] ?? 0);
  const finite = [min, used, runtime, one.asked[resource] ?? 0, cap].filter((units) => units < UNLIMITED);
  const whole = Math.max(1, ...finite);
  const text = `min ${amount(resource, min)}, used ${amount(resource, used)}, runtime ${amount(resource, runtime)}, max ${amount(resource, one.cap[resource])}`;
  return h(
    "div",
    { class: "quota-bar", role: "img", "aria-label": text, title: text },
    h("span", { class: "quota-runtime", style: { width: share(runtime, whole) } }),
    h("span", { class: `quota-used ${used > runtime ? "quota-over" : ""}`, style: { width: share(used, whole) } }),
    h("span", { class: "quota-min", style: { width: share(min, whole) } }),
  );
}

function loans(listed, resource) {
  const found = listed.filter((loan) => loan.amounts[resource]).map((loan) => `${loan.quota} ${amount(resource, loan.amounts[resource])}`);
  return found.join(", ") || "-";
}

function draw(found) {
  if (!found.quotas.length) {
    return empty("There are no quotas.", "An ElasticQuota in the cluster appears here; docs/concepts/quota.md has an example.");
  }
  const rows = [];
  for (const one of found.quotas) {
    const resources = [...new Set([...Object.keys(one.cap), ...Object.keys(one.used), ...Object.keys(one.asked), ...Object.keys(one.guaranteed)])].sort();
    resources.forEach((resource, at) => {
      const name = h("span", { class: "tree-name" }, h("span", { class: "indent", style: { width: `${one.depth * 1.25}rem` } }), at ? "" : h("b", {}, one.quota));
      rows.push({
        cells: [name, shortName(resource), quotaBar(one, resource), amount(resource, one.guaranteed[resource]), amount(resource, one.used[resource] || 0), amount(resource, one.entitled[resource]), amount(resource, one.cap[resource]), loans(one.lent_to, resource), loans(one.borrowed_from, resource)],
      });
    });
  }
  const remarks = [];
  for (const one of found.quotas) {
    if (one.adrift) remarks.push(h("p", {}, chip("no place in its tree", "bad"), ` ${one.quota}: ${one.adrift}`));
    if (Object.keys(one.overused).length) remarks.push(h("p", {}, chip("overused", "bad"), ` ${one.quota} uses more than it is entitled to: ${amounts(one.overused)}`));
    if (one.last_refusal) remarks.push(h("p", {}, chip("refused", "warn"), ` ${one.quota} refused `, podLink(one.last_refusal.pod), ` ${ago(one.last_refusal.at, now())}: ${one.last_refusal.message}`));
  }
  for (const [key, why] of Object.entries(found.unreadable || {})) remarks.push(h("p", {}, chip("unreadable", "bad"), ` ${key} counts for nothing: ${why}`));
  return [
    h("ul", { class: "legend" }, [["tier-prod", "used"], ["tier-requested line", "runtime: what it may use now"], ["tier-mid line", "min: what it is guaranteed"], ["tier-idle", "up to max"]].map(([kind, text]) => h("li", {}, h("span", { class: `swatch ${kind}` }), text))),
    table("Quotas", ["Quota", "Resource", "Min, used, runtime, max", ">Min", ">Used", ">Runtime", ">Max", "Lent to", "Borrowed from"], rows),
    remarks,
  ];
}

export function open() {
  const body = h("div", {}, h("p", { class: "muted" }, "Asking koord-scheduler."));
  const running = poll(3, () => report("quotas"), (found) => replace(body, found.failure ? empty("Quotas are the scheduler's numbers, and it does not answer.", found.failure) : draw(found)));
  return { element: h("div", {}, heading("Quotas", "koord quota tree"), section("", body)), update() {}, close: () => running.close() };
}
