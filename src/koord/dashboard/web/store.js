// The live state: node rows, sums, samples. It follows the server by long polling and tells when it cannot.

const RETRY_MS = [500, 1000, 2000, 4000, 5000];
const RECENT_KEPT = 720;
const DAY_KEPT = 1440;

// The places of a resource's numbers in a row and in sums.
export const USE = { capacity: 0, used: 1, prodRequested: 2, prodUsed: 3, midLent: 4, midRequested: 5, midUsed: 6, batchLent: 7, batchRequested: 8, batchUsed: 9, systemUsed: 10 };

// Who uses a resource: the tiers, and what is no pod, such as the kernel and system daemons.
export function tiers(use) {
  return [["prod", use[USE.prodUsed]], ["mid", use[USE.midUsed]], ["batch", use[USE.batchUsed]], ["system", use[USE.systemUsed]]];
}

export const store = {
  epoch: "",
  version: 0,
  nodes: new Map(), // name -> row
  order: [], // names, sorted
  sums: { cpu: new Array(11).fill(0), memory: new Array(11).fill(0) },
  recent: [],
  day: [],
  pending: [],
  pendingCount: 0,
  pods: 0,
  reclaimed: { coreSeconds: 0, since: 0 },
  ready: false,
  problem: "",
  notes: [],
  time: 0,
  lostAt: 0, // when the connection was lost, 0 while it stands
  locked: false, // there is no valid session
};

const listeners = new Set();

export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function notify() {
  for (const listener of [...listeners]) listener();
}

// The server's time, so that a browser with another clock shows right ages.
let offset = 0;
export function now() {
  return Date.now() / 1000 + offset;
}

const byName = new Intl.Collator("en", { numeric: true }).compare;

function apply(update) {
  if (update.whole) {
    store.nodes.clear();
    store.recent = [];
    store.day = [];
  }
  let names = update.whole || update.removed.length > 0;
  for (const [name, cpu, memory, pods, reported, ready, schedulable, pool, labels] of update.nodes) {
    names = names || !store.nodes.has(name);
    const texts = labels.map((number) => update.labels[number]);
    store.nodes.set(name, { name, cpu, memory, pods, reported, ready: Boolean(ready), schedulable: Boolean(schedulable), pool, labels: texts });
  }
  for (const name of update.removed) store.nodes.delete(name);
  if (names) store.order = [...store.nodes.keys()].sort(byName);
  store.recent = store.recent.concat(update.recent).slice(-RECENT_KEPT);
  store.day = store.day.concat(update.day).slice(-DAY_KEPT);
  for (const key of ["epoch", "version", "sums", "pending", "pendingCount", "pods", "reclaimed", "ready", "problem", "notes", "time"]) {
    store[key] = update[key];
  }
  offset = update.time - Date.now() / 1000;
}

export class ReportError extends Error {}

export async function ask(path, options) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (answer.status === 401) {
    store.locked = true;
    notify();
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new ReportError(said.message || `the server answered ${answer.status}`);
  }
  const found = answer.status === 204 ? null : await answer.json();
  if (found && typeof found.failure === "string") throw new ReportError(found.failure);
  return found;
}

export function report(name, query) {
  return ask(`/api/reports/${name}?${new URLSearchParams(query || {})}`);
}

// Trades the token of the address for a cookie, and takes the token out of the address bar.
export async function openSession(token) {
  await ask("/api/session", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  store.locked = false;
}

export async function follow() {
  for (let tries = 0; ; ) {
    try {
      apply(await ask(`/api/updates?${new URLSearchParams({ epoch: store.epoch, since: store.version })}`));
      tries = 0;
      store.lostAt = 0;
      notify();
      await new Promise((done) => setTimeout(done, document.hidden ? 5000 : 900));
    } catch (error) {
      if (store.locked) return;
      store.lostAt = store.lostAt || Date.now() / 1000;
      notify();
      await new Promise((done) => setTimeout(done, RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)]));
    }
  }
}
