// Returns what is wrong on the page for people who use a keyboard, a screen reader or weak eyes; an expression for a test.
(() => {
  const problems = [];
  const seen = (element) => element.checkVisibility({ checkOpacity: false, checkVisibilityCSS: true }) && element.getClientRects().length > 0;
  const told = (element) => `${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""} "${(element.textContent || "").trim().slice(0, 40)}"`;
  const name = (element) =>
    (element.getAttribute("aria-label") || element.textContent || element.getAttribute("title") || "").trim() ||
    [...(element.labels || [])].map((label) => label.textContent.trim()).join("");

  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title) problems.push("the page has no title");
  if (document.querySelectorAll("h1").length !== 1) problems.push(`${document.querySelectorAll("h1").length} h1`);
  if (document.querySelectorAll("main").length !== 1) problems.push("not one main");
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1 && level) problems.push(`a heading is skipped before ${told(heading)}`);
    level = next;
  }
  for (const element of document.querySelectorAll("a, button, input, select, textarea, [role=img], [role=application], [role=table], [role=region], canvas")) {
    if (seen(element) && !name(element)) problems.push(`no name: ${told(element)}`);
  }
  for (const field of document.querySelectorAll("input, select, textarea")) {
    if (seen(field) && !field.labels.length && !field.getAttribute("aria-label")) problems.push(`no label: ${told(field)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) problems.push("an id is there twice");
  for (const element of document.querySelectorAll("[onclick], [tabindex]")) {
    if (Number(element.getAttribute("tabindex")) > 0) problems.push(`a tabindex above 0: ${told(element)}`);
  }
  for (const row of document.querySelectorAll("[role=row]")) {
    if (![...row.children].every((cell) => ["cell", "columnheader"].includes(cell.getAttribute("role")))) problems.push("a row with something else than cells");
  }
  for (const head of document.querySelectorAll("table")) {
    if (!head.querySelector("th[scope]")) problems.push(`a table without titles: ${told(head)}`);
  }
  if (document.documentElement.scrollWidth > document.documentElement.clientWidth + 1) problems.push(`the page is ${document.documentElement.scrollWidth} wide in a window of ${document.documentElement.clientWidth}`);

  // Contrast by WCAG 2: 4.5 to 1, for large text 3 to 1.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = colour(getComputedStyle(at).backgroundColor);
      if (found[3] === 255) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const reported = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !seen(element) || element.closest(".hidden, .skip, noscript, script, datalist")) continue;
    const style = getComputedStyle(element);
    const [front, back] = [colour(element instanceof SVGElement ? style.fill : style.color).slice(0, 3), behind(element)];
    const [light, dark] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const text = `contrast ${ratio.toFixed(2)}: ${told(element)}`;
    if (ratio < (large ? 3 : 4.5) && !reported.has(text)) {
      reported.add(text);
      problems.push(text);
    }
  }
  return problems.slice(0, 20);
})()
