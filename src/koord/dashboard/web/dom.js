// Builds elements. Data only ever becomes text nodes and attribute values: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

// Replaces what an element holds, and gives the focus back to the part with the same data-key.
export function replace(element, ...children) {
  const focused = document.activeElement;
  const key = element.contains(focused) ? focused.getAttribute("data-key") : null;
  const open = new Set([...element.querySelectorAll("details[open][data-key]")].map((d) => d.dataset.key));
  element.replaceChildren();
  append(element, children);
  for (const details of element.querySelectorAll("details[data-key]")) {
    if (open.has(details.dataset.key)) details.open = true;
  }
  if (key !== null) {
    for (const candidate of element.querySelectorAll("[data-key]")) {
      if (candidate.getAttribute("data-key") === key) candidate.focus({ preventScroll: true });
    }
  }
}

export function link(href, text, properties) {
  return h("a", { href, "data-link": true, "data-key": href, ...properties }, text);
}

export function nodeLink(name) {
  return name ? link(`/nodes/${encodeURIComponent(name)}`, name) : h("span", { class: "muted" }, "-");
}

export function podLink(full) {
  const cut = full.indexOf("/");
  if (cut < 1 || full.indexOf("/", cut + 1) >= 0) return full;
  const [namespace, name] = [full.slice(0, cut), full.slice(cut + 1)];
  return link(`/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, full);
}

export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

// The title of a page with the command that prints the same on a terminal.
export function heading(title, command, ...after) {
  const copy = h("button", { type: "button", class: "copy", title: "Copy the command", "aria-label": `Copy ${command}` }, "Copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command);
    announce("copied");
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  return h(
    "div",
    { class: "heading" },
    h("h1", { tabindex: "-1" }, title),
    after,
    h("p", { class: "command" }, h("span", { class: "hidden" }, "The same on a terminal: "), h("code", {}, command), copy),
  );
}

export function section(title, ...children) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, children);
}

export function empty(title, ...advice) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), advice.map((one) => h("p", {}, one)));
}

// A plain table: titles that begin with ">" are numbers and stand on the right.
export function table(label, titles, rows) {
  const right = titles.map((title) => title.startsWith(">"));
  const cell = (tag, value, place) => h(tag, { class: right[place] ? "number" : null, ...(tag === "th" ? { scope: "col" } : {}) }, value);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, titles.map((title, place) => cell("th", title.replace(/^>/, ""), place)))),
      h("tbody", {}, rows.map((row) => h("tr", { class: row.className || null }, row.cells.map((value, place) => cell("td", value, place))))),
    ),
  );
}

export function chip(text, kind) {
  return h("span", { class: `chip ${kind || ""}` }, text);
}

export function terms(pairs) {
  return h("dl", { class: "terms" }, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function navigate(path) {
  history.pushState(null, "", path);
  window.dispatchEvent(new PopStateEvent("popstate"));
}
