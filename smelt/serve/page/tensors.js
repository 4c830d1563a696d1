// A form for any model of tensors: numbers as JSON, random numbers, text, or a picture that becomes a tensor.

import { ask, el, labelled, numberText } from "./api.js";

const WHOLE = /^U?INT/;
const SHOWN = 1024; // elements of an output that are printed
const SCALES = {
  "0 to 1": () => (value) => value / 255,
  "0 to 255": () => (value) => value,
  "−1 to 1": () => (value) => value / 127.5 - 1,
  ImageNet: (channel) => (value) => (value / 255 - [0.485, 0.456, 0.406][channel]) / [0.229, 0.224, 0.225][channel],
};

export function tensorPanel(model) {
  const sizes = new Map(); // dynamic dimension → its input element
  for (const size of new Set(model.inputs.flatMap((port) => port.shape.filter((each) => typeof each === "string"))))
    sizes.set(size, el("input", { type: "number", min: "0", max: "65536", value: "1", inputmode: "numeric" }));
  const shapeOf = (port) =>
    port.shape.map((size) => (typeof size === "string" ? Math.max(0, Math.round(Number(sizes.get(size).value))) : size));
  const fields = model.inputs.map((port) => inputField(port, () => shapeOf(port)));
  for (const control of sizes.values()) control.addEventListener("change", () => fields.forEach((each) => each.reset()));
  const result = el("div", { class: "result", role: "status", "aria-live": "polite" });
  const submit = el("button", { type: "submit", text: "Run" });
  const dynamic = [...sizes].map(([name, control]) => labelled(`Size of ${name}`, control));
  const form = el("form", { class: "try" });
  if (dynamic.length) form.append(el("div", { class: "row" }, ...dynamic));
  form.append(...fields.map((each) => each.element), el("div", { class: "buttons" }, submit), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const inputs = Object.fromEntries(fields.map((each) => [each.name, each.read()]));
      const path = `/api/v1/models/${encodeURIComponent(model.name)}/infer`;
      showResult(result, await ask(path, { method: "POST", body: { inputs } }));
    } catch (error) {
      result.replaceChildren(el("p", { class: "wrong", text: error.message }));
    }
    submit.disabled = false;
  });
  return form;
}

// ---- inputs ----

const fill = (shape, make) => (shape.length ? Array.from({ length: shape[0] }, () => fill(shape.slice(1), make)) : make());

function maker(port, random) {
  if (port.datatype === "BYTES") return () => "";
  if (port.datatype === "BOOL") return () => random && Math.random() < 0.5;
  if (!random) return () => 0;
  return WHOLE.test(port.datatype) ? () => Math.floor(Math.random() * 10) : () => Number(Math.random().toFixed(4));
}

function inputField(port, shape) {
  const text = el("textarea", { rows: "4", spellcheck: "false", autocapitalize: "off" });
  const put = (random) => (text.value = JSON.stringify(fill(shape(), maker(port, random))));
  const buttons = el(
    "div", { class: "buttons" },
    el("button", { type: "button", class: "quiet small", text: "Zeros", onclick: () => put(false) }),
    el("button", { type: "button", class: "quiet small", text: "Random numbers", onclick: () => put(true) }),
  );
  if (port.datatype === "BYTES") buttons.firstChild.textContent = "Empty strings";
  if (port.datatype === "BYTES") buttons.lastChild.remove();
  const about = `${port.name}: ${port.datatype}[${port.shape.join(", ")}]`;
  const picture = pictureLayout(port.shape) && port.datatype !== "BYTES" ? pictureField(port, shape, text) : null;
  const hint = port.datatype === "BYTES" ? "Nested lists of strings, as JSON." : "Nested lists of numbers, as JSON.";
  const legend = el("legend", { text: about });
  const element = el("fieldset", {}, legend, labelled("Data", text, hint), buttons, picture);
  put(false);
  return {
    name: port.name,
    element,
    reset: () => put(false),
    read() {
      try {
        return JSON.parse(text.value);
      } catch (error) {
        text.focus();
        throw new Error(`${port.name}: the data is no JSON: ${error.message}`);
      }
    },
  };
}

// ---- pictures ----

/** How a shape can hold pictures: where channels, height and width are; null where it cannot. */
export function pictureLayout(shape) {
  const few = (size) => size === 1 || size === 3;
  if (shape.length === 4 && few(shape[1])) return { channels: shape[1], height: shape[2], width: shape[3], first: true };
  if (shape.length === 4 && few(shape[3])) return { channels: shape[3], height: shape[1], width: shape[2] };
  if (shape.length === 3 && few(shape[0])) return { channels: shape[0], height: shape[1], width: shape[2], first: true };
  if (shape.length === 3 && few(shape[2])) return { channels: shape[2], height: shape[0], width: shape[1] };
  const side = Math.sqrt(shape.at(-1));
  if (shape.length === 2 && side >= 4 && Number.isInteger(side)) return { channels: 1, height: side, width: side, flat: true };
  return null;
}

function pictureField(port, shape, text) {
  const file = el("input", { type: "file", accept: "image/*" });
  const scale = el("select", {}, ...Object.keys(SCALES).map((name) => el("option", { text: name })));
  if (WHOLE.test(port.datatype)) scale.value = "0 to 255";
  const inverted = el("input", { type: "checkbox" });
  const view = el("canvas", { width: "0", height: "0", role: "img", "aria-label": "the picture as the model gets it" });
  const update = async () => {
    if (!file.files.length) return;
    try {
      text.value = JSON.stringify(await readPicture(file.files[0], port, shape(), scale.value, inverted.checked, view));
    } catch (error) {
      text.value = `${error.message}`;
    }
  };
  for (const control of [file, scale, inverted]) control.addEventListener("change", update);
  const controls = el(
    "div", { class: "row" },
    labelled("Picture", file), labelled("Values", scale), labelled("Invert", inverted), view,
  );
  return el("details", {}, el("summary", { text: "From a picture" }), controls);
}

async function readPicture(file, port, sizes, scale, inverted, view) {
  const layout = pictureLayout(port.shape);
  const dynamic = (size) => typeof size === "string";
  const bitmap = await createImageBitmap(file);
  const at = layout.flat ? null : sizes.length - 3 + (layout.first ? 1 : 0);
  const height = layout.flat ? layout.height : dynamic(layout.height) && sizes[at] <= 1 ? bitmap.height : sizes[at];
  const width = layout.flat ? layout.width : dynamic(layout.width) && sizes[at + 1] <= 1 ? bitmap.width : sizes[at + 1];
  view.width = width;
  view.height = height;
  const context = view.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const whole = WHOLE.test(port.datatype);
  const value = (channel, y, x) => {
    const from = 4 * (y * width + x);
    let number = layout.channels === 1 ? 0.299 * data[from] + 0.587 * data[from + 1] + 0.114 * data[from + 2] : data[from + channel];
    if (inverted) number = 255 - number;
    number = SCALES[scale](channel)(number);
    return whole ? Math.round(number) : Number(number.toFixed(5));
  };
  const range = (count, make) => Array.from({ length: count }, (_, i) => make(i));
  let made;
  if (layout.flat) made = range(height * width, (i) => value(0, Math.floor(i / width), i % width));
  else if (layout.first) made = range(layout.channels, (c) => range(height, (y) => range(width, (x) => value(c, y, x))));
  else made = range(height, (y) => range(width, (x) => range(layout.channels, (c) => value(c, y, x))));
  const batched = layout.flat || port.shape.length === 4;
  return batched ? range(Math.max(1, sizes[0]), () => made) : made;
}

// ---- outputs ----

function shapeOf(value) {
  const found = [];
  for (let at = value; Array.isArray(at); at = at[0]) found.push(at.length);
  return found;
}

function showResult(place, answer) {
  const parts = [el("p", { text: `Version ${answer.version} answered in ${numberText(answer.ms)} ms.` })];
  for (const [name, value] of Object.entries(answer.outputs)) {
    const shape = shapeOf(value);
    parts.push(el("h3", { text: `${name} [${shape.join(", ")}]` }));
    const flat = [value].flat(Infinity);
    const classes = shape.at(-1) ?? 0;
    const ranked = shape.length && shape.length <= 2 && classes >= 2 && typeof flat[0] === "number";
    if (ranked)
      parts.push(largest(flat.slice(0, classes), shape.length === 2 && shape[0] > 1));
    const text = flat.length > SHOWN ? `${JSON.stringify(flat.slice(0, SHOWN)).slice(0, -1)}, …` : JSON.stringify(value);
    const open = !ranked && flat.length <= 64;
    parts.push(el("details", { open }, el("summary", { text: "Values" }), el("pre", { tabindex: "0", text })));
  }
  place.replaceChildren(...parts);
}

/** The five largest of a row with a bar each, for classifiers. */
function largest(values, several) {
  const best = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 5);
  const [low, high] = [Math.min(0, ...values), Math.max(...values)];
  const list = el("ol", { class: "largest" });
  for (const i of best) {
    const bar = el("meter", { min: low, max: high > low ? high : low + 1, value: values[i], "aria-hidden": "true" });
    list.append(el("li", {}, el("span", { text: `index ${i}` }), bar, el("span", { class: "number", text: numberText(values[i]) })));
  }
  const about = `The largest values${several ? " of the first row" : ""}:`;
  return el("div", {}, el("p", { class: "hint", text: about }), list);
}
