// The frame of all pages: navigation, deep links, connection, theme.

import { announce, h, navigate, replace } from "/assets/dom.js";
import { duration } from "/assets/format.js";
import { follow, openSession, store, subscribe } from "/assets/store.js";

const PAGES = [
  ["", "Overview", "overview"],
  ["nodes", "Nodes", "nodes"],
  ["pods", "Pods", "pods"],
  ["quotas", "Quotas", "quotas"],
  ["gangs", "Gangs", "gangs"],
  ["reservations", "Reservations", "reservations"],
  ["moves", "Moves", "moves"],
  ["interference", "Interference", "interference"],
];
const DETAILS = { nodes: "node", pods: "pod", gangs: "gangs" };

const main = document.getElementById("main");
let view = null;
let shown = 0;

function route() {
  const parts = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  const page = PAGES.find(([path]) => path === (parts[0] || "")) || PAGES[0];
  const module = parts.length > 1 && DETAILS[page[0]] ? DETAILS[page[0]] : page[2];
  return { page, module, parameters: parts.slice(1) };
}

async function show(moveFocus) {
  const { page, module, parameters } = route();
  const turn = ++shown;
  drawNav(page[0]);
  const { open } = await import(`/assets/${module}.js`);
  if (turn !== shown) return; // another page was chosen meanwhile
  if (view && view.close) view.close();
  view = open(parameters);
  main.replaceChildren(view.element);
  document.title = `${[...parameters].reverse().concat(page[1]).join(" - ")} - koord`;
  view.update();
  if (moveFocus) {
    window.scrollTo(0, 0);
    const title = main.querySelector("h1");
    if (title) title.focus({ preventScroll: true });
    announce(document.title);
  }
}

function drawNav(current) {
  const items = PAGES.map(([path, title]) =>
    h("a", { href: `/${path}`, "data-link": true, "data-key": `nav-${path}`, "aria-current": path === current ? "page" : null }, title, path === "pods" && store.pendingCount ? h("span", { class: "badge" }, store.pendingCount, h("span", { class: "hidden" }, " pending")) : null),
  );
  replace(document.getElementById("nav"), items);
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[data-link]");
  if (!anchor || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  navigate(anchor.getAttribute("href"));
});
window.addEventListener("popstate", () => show(true));

function drawConnection() {
  const banner = document.getElementById("banner");
  const state = document.getElementById("connection");
  let text = "";
  if (store.lostAt) {
    const since = duration(Date.now() / 1000 - store.lostAt);
    text = `Connection lost ${since} ago, trying again. What you see is the last state that was received.`;
  } else if (store.problem) {
    text = `The dashboard does not reach the API server: ${store.problem}. What you see may be old.`;
  }
  const word = store.lostAt ? "connection lost" : store.problem ? "cluster not reached" : store.ready ? "live" : "loading";
  if (state.textContent !== word) state.textContent = word;
  state.className = `connection ${word === "live" ? "good" : word === "loading" ? "" : "bad"}`;
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
  document.body.classList.toggle("stale", Boolean(text));
}

let drawnPending = -1;
subscribe(() => {
  drawConnection();
  if (store.locked) {
    drawLocked();
    return;
  }
  if (drawnPending !== store.pendingCount) {
    drawnPending = store.pendingCount;
    drawNav(route().page[0]);
  }
  if (view) view.update();
});
setInterval(() => store.lostAt && drawConnection(), 1000);

function drawLocked() {
  if (document.getElementById("token")) return;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", name: "token" });
  const wrong = h("p", { class: "error", role: "alert" });
  const form = h(
    "form",
    { class: "card locked" },
    h("h1", {}, "This dashboard needs its token"),
    h("p", {}, "Open the address that koord up or koord dashboard printed, or paste the part after #token= here. A restart makes a new token."),
    h("label", { for: "token" }, "Token"),
    field,
    h("button", { type: "submit" }, "Open"),
    wrong,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await openSession(field.value.trim().replace(/^.*token=/, ""));
      location.reload();
    } catch (error) {
      wrong.textContent = error.message;
    }
  });
  document.getElementById("connection").textContent = "locked";
  view = null;
  shown += 1;
  main.replaceChildren(form);
}

const THEMES = ["auto", "light", "dark"];
const themeButton = document.getElementById("theme");
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
function setTheme(name) {
  theme = name;
  // The style sheet has the dark colours once: what "auto" means is decided here.
  document.documentElement.dataset.theme = name === "auto" ? (systemIsDark.matches ? "dark" : "light") : name;
  themeButton.textContent = `Theme: ${name}`;
  localStorage.setItem("koord-theme", name);
}
themeButton.addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
});
systemIsDark.addEventListener("change", () => setTheme(theme));
setTheme(THEMES.includes(localStorage.getItem("koord-theme")) ? localStorage.getItem("koord-theme") : "auto");

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await openSession(token);
    } catch (error) {
      drawLocked();
      return;
    }
  }
  await show(false);
  follow();
}
start();
