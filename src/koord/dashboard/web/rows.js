// A table of any length that builds only the rows in sight.

import { h } from "/assets/dom.js";

const ROW_PX = 34;
const SPARE = 6; // rows above and below what is seen

// `columns` are {title, width, number}; `cells(index)` returns the cells of a row, or null while it is not there yet.
export function virtualRows({ label, columns, cells }) {
  const template = columns.map((column) => column.width).join(" ");
  const head = h(
    "div",
    { class: "vrow vhead", role: "row", "aria-rowindex": 1, style: { gridTemplateColumns: template } },
    columns.map((column) => h("div", { role: "columnheader", class: column.number ? "number" : null }, column.title)),
  );
  const body = h("div", { class: "vbody", role: "rowgroup" });
  const element = h("div", { class: "vtable", role: "table", "aria-label": label, tabindex: "0" }, h("div", { role: "rowgroup", class: "vhead-group" }, head), body);
  const built = new Map(); // index -> row: a row that stays in sight is not made again by scrolling
  let stale = false; // what rows say may have changed
  let total = 0;
  let queued = false;

  function build(index) {
    const found = cells(index);
    return h(
      "div",
      { class: "vrow", role: "row", "data-waits": found ? null : "true", "aria-rowindex": index + 2, style: { gridTemplateColumns: template, top: `${index * ROW_PX}px` } },
      columns.map((column, place) => h("div", { role: "cell", class: column.number ? "number" : null }, found ? found[place] : "")),
    );
  }

  function draw() {
    queued = false;
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
    const first = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - SPARE);
    const last = Math.min(total, Math.ceil((element.scrollTop + element.clientHeight) / ROW_PX) + SPARE);
    for (const [index, row] of built) {
      if (!stale && index >= first && index < last && !row.hasAttribute("data-waits")) continue;
      row.remove();
      built.delete(index);
    }
    stale = false;
    let next = body.firstChild; // rows stand in their order, for screen readers
    for (let index = first; index < last; index += 1) {
      if (built.has(index)) {
        next = built.get(index).nextSibling;
      } else {
        built.set(index, build(index));
        body.insertBefore(built.get(index), next);
      }
    }
    if (focused !== null && !body.contains(document.activeElement)) {
      const again = [...body.querySelectorAll("[data-key]")].find((one) => one.getAttribute("data-key") === focused);
      if (again) again.focus({ preventScroll: true });
    }
  }

  function queue() {
    if (!queued) {
      queued = true;
      requestAnimationFrame(draw);
    }
  }
  element.addEventListener("scroll", queue, { passive: true });
  const resized = new ResizeObserver(queue);
  resized.observe(element);
  return {
    element,
    update(count) {
      total = count;
      stale = true;
      element.setAttribute("aria-rowcount", count + 1);
      body.style.height = `${count * ROW_PX}px`;
      element.style.height = `${Math.min(count, 16) * ROW_PX + 40}px`;
      element.hidden = !count;
      queue();
    },
    close: () => resized.disconnect(),
  };
}

// A bar of what each tier uses of a whole, with its text.
export function tierBar(parts, whole, text) {
  const fills = parts.map(([tier, units]) => h("span", { class: `bar-fill tier-${tier}`, style: { width: `${whole ? Math.min(100, (100 * units) / whole).toFixed(1) : 0}%` } }));
  return h("span", { class: "bar" }, h("span", { class: "bar-track" }, fills), h("span", { class: "bar-text" }, text));
}

// A bar for a share of a whole, with its text: the text is what a screen reader hears.
export function bar(part, whole, tier, text) {
  const share = whole ? Math.min(1, Math.max(0, part / whole)) : 0;
  return h("span", { class: "bar" }, h("span", { class: "bar-track" }, h("span", { class: `bar-fill tier-${tier}`, style: { width: `${(100 * share).toFixed(1)}%` } })), h("span", { class: "bar-text" }, text));
}
