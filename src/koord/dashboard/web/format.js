// Numbers, amounts and times as texts with their units.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const UNLIMITED = 2 ** 60;

export function digits(value) {
  const size = Math.abs(value);
  const text = size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function count(value) {
  return value.toLocaleString("en");
}

export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many || `${one}s`}`;
}

export function cores(milli) {
  const value = milli / 1000;
  return `${digits(value)}\u00a0${value === 1 ? "core" : "cores"}`;
}

export function bytes(value) {
  let power = 0;
  while (Math.abs(value) >= 1024 && power < BINARY.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${digits(value)}\u00a0${BINARY[power]}`;
}

export function shortName(resource) {
  return resource.replace(/^kubernetes\.io\//, "");
}

// Amounts arrive as the API counts them: milli-cores, bytes, or pieces.
export function amount(resource, units) {
  if (units === null || units === undefined) return "-";
  if (units >= UNLIMITED) return "unlimited";
  if (/(^|[/-])cpu$/.test(resource)) return cores(units);
  if (/memory$|storage$|^hugepages-/.test(resource)) return bytes(units);
  return count(units);
}

export function amounts(found) {
  const listed = Object.entries(found || {}).filter(([, units]) => units);
  return listed.map(([name, units]) => `${shortName(name)} ${amount(name, units)}`).join(", ") || "-";
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)}\u00a0%` : "-"; // a number and its unit stay on one line
}

export function duration(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]]) {
    const whole = Math.floor(left / size);
    left -= whole * size;
    if (whole || (unit === "s" && !parts.length)) parts.push(`${whole}${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

export function seconds(moment) {
  if (moment === null || moment === undefined || moment === "") return null;
  return typeof moment === "number" ? moment : Date.parse(moment) / 1000;
}

export function ago(moment, now) {
  const at = seconds(moment);
  if (at === null || Number.isNaN(at)) return "never";
  return now - at < 1 ? "now" : `${duration(now - at)} ago`;
}

export function clock(moment, withSeconds) {
  const at = new Date(seconds(moment) * 1000);
  return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}) });
}
