// A stacked area chart over time with lines on top, a legend with the latest values, and a reading under the pointer.

import { h, replace, svg } from "/assets/dom.js";
import { clock } from "/assets/format.js";

const MARGIN = { top: 10, right: 12, bottom: 24, left: 56 };
const HEIGHT = 230;

function niceStep(most, wanted, binary) {
  const raw = most / wanted || 1;
  if (binary) return 2 ** Math.ceil(Math.log2(raw));
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
}

// Samples without a longer pause between them: nothing is drawn over a time that nobody watched.
function runs(samples, gap) {
  const found = [];
  for (const sample of samples) {
    const last = found[found.length - 1];
    if (last && sample[0] - last[last.length - 1][0] <= gap) last.push(sample);
    else found.push([sample]);
  }
  return found;
}

// `areas` and `lines` are {key, title, value(sample)}; samples have their time in seconds first.
export function timeChart({ title, areas, lines, format, axis, binary }) {
  const picture = svg("svg", { class: "chart", role: "img", tabindex: "0", height: HEIGHT });
  const legend = h("ul", { class: "legend" });
  const reading = h("p", { class: "reading", "aria-live": "off" });
  const element = h("figure", { class: "chart-frame" }, h("figcaption", {}, title), legend, picture, reading);
  let samples = [];
  let gap = Infinity;
  let picked = -1;

  function draw() {
    const width = Math.max(280, picture.clientWidth || element.clientWidth || 600);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const shown = picked >= 0 && picked < samples.length ? samples[picked] : samples[samples.length - 1];
    replace(
      legend,
      [...areas, ...lines].map(({ key, title: name, value }) =>
        h("li", {}, h("span", { class: `swatch ${lines.some((line) => line.key === key) ? "line" : ""} tier-${key}` }), h("span", {}, name), h("b", {}, shown ? format(value(shown)) : "-")),
      ),
    );
    reading.textContent = picked >= 0 && shown ? `At ${clock(shown[0], true)}. Escape returns to now.` : "";
    picture.replaceChildren();
    if (samples.length < 2) {
      picture.setAttribute("aria-label", `${title}: no past yet`);
      picture.append(svg("text", { x: width / 2, y: HEIGHT / 2, class: "chart-empty", "text-anchor": "middle" }, "Collecting samples, one every 5 seconds"));
      return;
    }
    const [first, last] = [samples[0][0], samples[samples.length - 1][0]];
    let most = 1;
    for (const sample of samples) {
      most = Math.max(most, areas.reduce((sum, area) => sum + area.value(sample), 0), ...lines.map((line) => line.value(sample)));
    }
    const step = niceStep(most, 4, binary);
    most = Math.ceil(most / step) * step;
    const x = (time) => MARGIN.left + ((time - first) / (last - first || 1)) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => HEIGHT - MARGIN.bottom - (value / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    for (let at = 0; at <= most + step / 2; at += step) {
      picture.append(
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(at), y2: y(at) }),
        svg("text", { class: "tick", x: MARGIN.left - 8, y: y(at) + 4, "text-anchor": "end" }, axis(at)),
      );
    }
    const ticks = Math.max(2, Math.floor(width / 160));
    for (let at = 0; at <= ticks; at += 1) {
      const time = first + ((last - first) * at) / ticks;
      const anchor = at === 0 ? "start" : at === ticks ? "end" : "middle";
      picture.append(svg("text", { class: "tick", x: x(time), y: HEIGHT - 6, "text-anchor": anchor }, clock(time, last - first < 600)));
    }
    for (const run of runs(samples, gap)) {
      const floor = new Array(run.length).fill(0);
      for (const area of areas) {
        const under = run.map((sample, at) => `${x(sample[0]).toFixed(1)},${y(floor[at]).toFixed(1)}`);
        run.forEach((sample, at) => (floor[at] += Math.max(0, area.value(sample))));
        const over = run.map((sample, at) => `${x(sample[0]).toFixed(1)},${y(floor[at]).toFixed(1)}`);
        picture.append(svg("path", { class: `area tier-${area.key}`, d: `M${over.join("L")}L${under.reverse().join("L")}Z` }));
      }
      for (const line of lines) {
        const points = run.map((sample) => `${x(sample[0]).toFixed(1)},${y(line.value(sample)).toFixed(1)}`);
        picture.append(svg("path", { class: `line tier-${line.key}`, d: `M${points.join("L")}` }));
      }
    }
    if (picked >= 0 && shown) picture.append(svg("line", { class: "cross", x1: x(shown[0]), x2: x(shown[0]), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    const words = [...areas, ...lines].map(({ title: name, value }) => `${name} ${format(value(shown))}`);
    picture.setAttribute("aria-label", `${title} at ${clock(shown[0], true)}: ${words.join(", ")}`);
  }

  function pick(event) {
    if (samples.length < 2) return;
    const box = picture.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
    const time = samples[0][0] + share * (samples[samples.length - 1][0] - samples[0][0]);
    picked = samples.findIndex((sample) => sample[0] >= time);
    draw();
  }
  picture.addEventListener("pointermove", pick);
  picture.addEventListener("pointerleave", () => ((picked = -1), draw()));
  picture.addEventListener("keydown", (event) => {
    const at = picked < 0 ? samples.length - 1 : picked;
    if (event.key === "ArrowLeft") picked = Math.max(0, at - 1);
    else if (event.key === "ArrowRight") picked = Math.min(samples.length - 1, at + 1);
    else if (event.key === "Home") picked = 0;
    else if (event.key === "Escape" || event.key === "End") picked = -1;
    else return;
    event.preventDefault();
    draw();
  });
  const resized = new ResizeObserver(() => draw());
  resized.observe(element);
  return {
    element,
    update(next, gapSeconds) {
      gap = gapSeconds;
      if (picked >= 0 && samples[picked]) {
        const time = samples[picked][0];
        picked = next.findIndex((sample) => sample[0] === time);
      }
      samples = next;
      draw();
    },
    close: () => resized.disconnect(),
  };
}
