// What a model was compiled to: the launches of kernels as a graph, and what each kernel takes.

import { ask, bytesText, el, numberText } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";
const [HIGH, GAP, LEFT, WIDE] = [34, 14, 60, 460];
const MOST = 400; // launches that are drawn

const node = (name, attributes, text) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const short = (ops = []) => {
  const names = ops.map((op) => op.split(".").at(-1));
  return names.slice(0, 4).join(", ") + (names.length > 4 ? ` +${names.length - 4}` : "");
};

export function programPanel(model, admin) {
  if (model.kind !== "tensors") return el("p", { text: "Only models of tensors are shown as programs." });
  if (!admin) return el("p", { text: "This needs an admin key, or a server that was started with --admin." });
  const place = el("div", { role: "status" });
  const button = (text, view, draw) => {
    const made = el("button", { type: "button", class: "quiet", text });
    made.addEventListener("click", async () => {
      made.disabled = true;
      place.replaceChildren(el("p", { class: "hint", text: "Working …" }));
      try {
        place.replaceChildren(draw(await ask(`/api/v1/models/${encodeURIComponent(model.name)}/${view}`)));
      } catch (error) {
        place.replaceChildren(el("p", { class: "wrong", text: error.message }));
      }
      made.disabled = false;
    });
    return made;
  };
  const hint = "Either reads the model file again; the profile also runs it for a second.";
  return el(
    "div", { class: "try" },
    el("div", { class: "buttons" }, button("Show the graph", "program", graph), button("Profile the kernels", "profile", profile)),
    el("p", { class: "hint", text: hint }), place,
  );
}

/** Launches from top to bottom; a line for each buffer from the launch that writes it to those that read it. */
function graph(answer) {
  if (answer.text !== undefined) return el("pre", { tabindex: "0", text: answer.text });
  const functions = Object.entries(answer.functions);
  const peak = answer.peak_bytes ? `Peak memory ${bytesText(answer.peak_bytes)}.` : "";
  const parts = [el("p", { text: peak })];
  for (const [name, made] of functions) {
    if (functions.length > 1) parts.push(el("h3", { text: name }));
    parts.push(drawing(name, made));
  }
  return el("div", {}, ...parts);
}

function flatten(steps) {
  return steps.flatMap((step) => [step, ...flatten([...(step.head ?? []), ...(step.body ?? []), ...(step.branches ?? []).flat()])]);
}

function drawing(name, made) {
  const all = flatten(made.steps);
  const steps = all.slice(0, MOST);
  const height = steps.length * (HIGH + GAP) + 8;
  const picture = node("svg", { class: "graph", viewBox: `0 0 ${LEFT + WIDE + 8} ${height}`, width: LEFT + WIDE + 8, height, role: "img" });
  picture.setAttribute("aria-label", `${name}: ${all.length} steps; the list below has them as text`);
  const writer = new Map();
  const top = (i) => 4 + i * (HIGH + GAP);
  const shape = (i) => made.buffers[i]?.shape ?? "";
  const lines = [];
  steps.forEach((step, i) => {
    for (const read of step.reads ?? []) {
      const from = writer.get(read);
      if (from === undefined) continue;
      const [y1, y2] = [top(from) + HIGH, top(i)];
      const bend = Math.min(LEFT - 8, 10 + (i - from) * 5);
      const d = i - from === 1 ? `M${LEFT + 40} ${y1}V${y2}` : `M${LEFT} ${y1 - HIGH / 2}C${LEFT - bend} ${y1} ${LEFT - bend} ${y2} ${LEFT} ${y2 + HIGH / 2}`;
      picture.append(node("path", { d }));
    }
    for (const write of step.writes ?? []) writer.set(write, i);
    picture.append(node("rect", { x: LEFT, y: top(i), width: WIDE, height: HIGH, rx: 6 }));
    const written = (step.writes ?? []).map(shape).join(" ");
    const what = `${step.step}${step.ops?.length ? `: ${short(step.ops)}` : ""}`;
    picture.append(node("text", { x: LEFT + 10, y: top(i) + 15 }, what.slice(0, 66)));
    picture.append(node("text", { x: LEFT + 10, y: top(i) + 29, class: "small" }, written.slice(0, 80)));
    lines.push(el("li", { text: `${what}${written ? ` → ${written}` : ""}` }));
  });
  const more = all.length > MOST ? el("p", { class: "hint", text: `${all.length - MOST} more steps are not shown.` }) : null;
  const list = el("details", {}, el("summary", { text: `${steps.length} steps as text` }), el("ol", {}, ...lines));
  const box = el("div", { class: "graph-box", tabindex: "0", role: "region", "aria-label": `Graph of ${name}` });
  box.append(picture);
  return el("div", {}, box, more, list);
}

function profile(answer) {
  const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(0)} %`);
  const columns = [
    ["Kernel", (each) => each.kernel], ["Launches", (each) => each.launches], ["µs", (each) => numberText(1000 * each.ms)],
    ["Share", (each) => percent(each.share)], ["GFLOP/s", (each) => numberText(each.gflops)],
    ["GB/s", (each) => numberText(each.gbytes_per_second)], ["Of roofline", (each) => percent(each.of_roofline)],
    ["Computes", (each) => short(each.ops)],
  ];
  const style = (i) => (i === 0 || i === columns.length - 1 ? "" : "number");
  const head = el("tr", {}, ...columns.map(([text], i) => el("th", { scope: "col", class: style(i), text })));
  const cell = (kernel, read, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: style(i), text: String(read(kernel)) });
  const body = answer.kernels.map((kernel) => el("tr", {}, ...columns.map(([, read], i) => cell(kernel, read, i))));
  const table = el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  return el("div", {}, el("p", { text: `${numberText(answer.call_ms)} ms a call.` }), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Kernels" }, table));
}
