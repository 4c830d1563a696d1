// Calls of the server with the user's key, and small helpers for building elements.

const KEPT = "smelt-api-key";

export const key = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEPT, text) : sessionStorage.removeItem(KEPT)),
};

export class Refused extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** A response of the server; errors in either protocol's form become a `Refused`. */
export async function send(path, { method = "GET", body, signal, with: given = key.get() } = {}) {
  const headers = {};
  if (given) headers.Authorization = `Bearer ${given}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  const response = await fetch(path, { method, headers, body: text, signal });
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  const error = said?.error?.message ?? said?.error ?? response.statusText;
  throw new Refused(response.status, String(error), Number(response.headers.get("Retry-After")) || 0);
}

export const ask = async (path, options) => (await send(path, options)).json();

/** An element: properties that begin with "on" are listeners, `text` is its text, all others are attributes. */
export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

let count = 0;

/** A labelled control: `<label>` and the control, joined by an id. */
export function labelled(text, control, hint) {
  control.id ||= `control-${++count}`;
  const parts = [el("label", { for: control.id, text }), control];
  if (hint) {
    control.setAttribute("aria-describedby", `${control.id}-hint`);
    parts.push(el("p", { class: "hint", id: `${control.id}-hint`, text: hint }));
  }
  return el("div", { class: "field" }, ...parts);
}

export function bytesText(count) {
  if (!count) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log2(count) / 10));
  const value = count / 1024 ** at;
  return `${value >= 100 || at === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[at]}`;
}

export function numberText(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return value.toFixed(0);
  return value.toPrecision(3);
}
