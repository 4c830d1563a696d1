// Line charts as SVG: the last few minutes of a number, with its present value in words.

import { bytesText, el, numberText } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 72;
export const POINTS = 120;

function node(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** The `d` of a line; unknown values (null) leave gaps, a value between two gaps is a dot. The newest value is at the
 * right edge. */
function path(values, top) {
  let text = "";
  let drawn = false;
  values.forEach((value, i) => {
    if (value === null) {
      drawn = false;
      return;
    }
    const x = WIDTH - (values.length - 1 - i) * (WIDTH / (POINTS - 1));
    const y = HEIGHT - 2 - (value / top) * (HEIGHT - 6);
    const place = `${x.toFixed(1)} ${y.toFixed(1)}`;
    text += drawn ? `L${place}` : `M${place}h0`;
    drawn = true;
  });
  return text;
}

/** The next of 1, 2, 5, 10, 20, 50 …; of bytes the next power of two. */
function round(value, show) {
  if (!(value > 0)) return 1;
  if (show === bytesText) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Series {
  constructor() {
    this.values = [];
  }
  add(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
  }
  get last() {
    return this.values.at(-1) ?? null;
  }
}

export class Chart {
  /** `lines`: names of the lines, "" for a single one. `show`: a value as text. */
  constructor(title, lines = [""], show = numberText) {
    this.title = title;
    this.show = show;
    this.series = lines.map(() => new Series());
    this.names = lines;
    this.paths = lines.map((_, i) => node("path", { class: `line line-${i}`, "vector-effect": "non-scaling-stroke" }));
    this.picture = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    for (const y of [4, HEIGHT / 2, HEIGHT - 2]) {
      const place = { x1: 0, x2: WIDTH, y1: y, y2: y };
      this.picture.append(node("line", { class: "grid", "vector-effect": "non-scaling-stroke", ...place }));
    }
    this.picture.append(...this.paths);
    this.now = el("span", { class: "now" });
    this.top = el("span", { class: "top" });
    const heading = el("figcaption", {}, el("span", { text: title }), this.now);
    this.element = el("figure", { class: "chart" }, heading, el("div", { class: "plot" }, this.top));
    this.element.lastChild.append(this.picture);
  }

  add(...values) {
    values.forEach((value, i) => this.series[i].add(value));
    const known = this.series.flatMap((each) => each.values).filter((value) => value !== null);
    const top = round(Math.max(...known, 0), this.show);
    this.series.forEach((each, i) => this.paths[i].setAttribute("d", path(each.values, top)));
    const said = this.series.map((each, i) => `${this.names[i]} ${this.show(each.last)}`.trim());
    this.now.replaceChildren(
      ...said.map((text, i) => el("span", { class: this.names.length > 1 ? `value key-${i}` : "value", text })),
    );
    this.top.textContent = this.show(top);
    this.picture.setAttribute("aria-label", `${this.title}: ${said.join(", ")}; scale up to ${this.show(top)}`);
  }
}

/** A small line without axes, for a row of a table; the number beside it is its text. */
export class Sparkline {
  constructor() {
    this.series = new Series();
    this.line = node("path", { class: "line line-0", "vector-effect": "non-scaling-stroke" });
    this.element = node("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "sparkline", "aria-hidden": "true",
    });
    this.element.append(this.line);
  }
  add(value) {
    this.series.add(value);
    const top = Math.max(...this.series.values.filter((each) => each !== null), 1e-9);
    this.line.setAttribute("d", path(this.series.values, top));
  }
}
