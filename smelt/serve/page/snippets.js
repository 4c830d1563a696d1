// How to call a model from elsewhere: curl and Python; and what it takes and gives, as a table.

import { el, key } from "./api.js";

const MANY = 64; // elements of an input that a command still spells out

const size = (each) => (typeof each === "string" ? 1 : each);
const zeros = (shape, zero) => (shape.length ? Array.from({ length: size(shape[0]) }, () => zeros(shape.slice(1), zero)) : zero);
const count = (shape) => shape.reduce((total, each) => total * size(each), 1);
const NUMPY = {
  BOOL: "bool", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object", BF16: "ml_dtypes.bfloat16",
};
const numpy = (kind) => {
  const name = NUMPY[kind] ?? kind.toLowerCase();
  return name.includes(".") ? name : `np.${name === "bool" ? "bool_" : name === "object" ? "object_" : name}`;
};
const tuple = (shape) => (shape.length === 1 ? `${size(shape[0])},` : shape.map(size).join(", "));
const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curl(path, body) {
  const lines = [`curl ${location.origin}${path}`, "-H 'Content-Type: application/json'"];
  if (key.get()) lines.push('-H "Authorization: Bearer $SMELT_API_KEY"');
  lines.push(body === null ? "-d @request.json" : `-d ${quote(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

function tensors(model) {
  const small = model.inputs.every((port) => count(port.shape) <= MANY);
  const zero = (port) => (port.datatype === "BYTES" ? "text" : port.datatype === "BOOL" ? false : 0);
  const inputs = Object.fromEntries(model.inputs.map((port) => [port.name, small ? zeros(port.shape, zero(port)) : []]));
  const given = model.inputs.map((port) => `        ${JSON.stringify(port.name)}: np.zeros((${tuple(port.shape)}), ${numpy(port.datatype)}),`);
  const connect = key.get() ? `, key=os.environ["SMELT_API_KEY"]` : "";
  const imports = [...(key.get() ? ["import os", ""] : []), "import numpy as np", "import smelt", ""];
  const python = [
    ...imports,
    `with smelt.client.connect(${JSON.stringify(location.origin)}${connect}) as client:`,
    "    inputs = {", ...given, "    }",
    `    outputs = client.infer(${JSON.stringify(model.name)}, **inputs)`,
    ...model.outputs.map((port) => `    print(outputs[${JSON.stringify(port.name)}])`),
  ];
  const about = small ? "" : "request.json holds {\"inputs\": {NAME: nested lists}}. ";
  return [
    ["curl", curl(`/api/v1/models/${encodeURIComponent(model.name)}/infer`, small ? { inputs } : null), about],
    ["Python", python.join("\n"), "pip install smelt. Tensors travel in binary form."],
  ];
}

function openai(model, call, body) {
  const given = key.get() ? `os.environ["SMELT_API_KEY"]` : `"none"`;
  const lines = [...(key.get() ? ["import os", ""] : []), "from openai import OpenAI", ""];
  lines.push(`client = OpenAI(base_url="${location.origin}/v1", api_key=${given})`, ...call);
  return [["curl", curl(body.path, body.body), ""], ["Python", lines.join("\n"), "pip install openai"]];
}

function chat(model) {
  const name = JSON.stringify(model.name);
  const messages = [{ role: "user", content: "Hello" }];
  const call = [
    `stream = client.chat.completions.create(`, `    model=${name}, messages=[{"role": "user", "content": "Hello"}], stream=True`, ")",
    "for chunk in stream:", `    print(chunk.choices[0].delta.content or "", end="", flush=True)`,
  ];
  return openai(model, call, { path: "/v1/chat/completions", body: { model: model.name, messages } });
}

function embedding(model) {
  const call = [`found = client.embeddings.create(model=${JSON.stringify(model.name)}, input=["a text"])`, "print(found.data[0].embedding)"];
  return openai(model, call, { path: "/v1/embeddings", body: { model: model.name, input: ["a text"] } });
}

function ranking(model) {
  const body = { model: model.name, query: "a question", documents: ["a text", "another"] };
  return [["curl", curl("/v1/rerank", body), "The answer has the documents' numbers, the most relevant first."]];
}

export function snippetsPanel(model) {
  const made = { tensors, chat, embedding, ranking }[model.kind](model);
  return el("div", {}, ...made.map(([name, text, about]) => block(name, text, about)));
}

function block(name, text, about) {
  const said = el("span", { class: "hint", role: "status" });
  const copy = el("button", { type: "button", class: "quiet small", text: "Copy", "aria-label": `Copy the ${name} code` });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied.";
    } catch {
      said.textContent = "The browser does not allow it here.";
    }
  });
  const head = el("div", { class: "buttons" }, el("h3", { text: name }), copy, said);
  return el("div", { class: "snippet" }, head, about ? el("p", { class: "hint", text: about }) : null, el("pre", { tabindex: "0", text }));
}

export function signaturePanel(model) {
  if (model.kind !== "tensors") return el("p", { text: "Text in; see the code for what can be asked." });
  const line = (way) => (port) =>
    el("tr", {}, el("th", { scope: "row", text: port.name }), el("td", { text: way }), el("td", { text: port.datatype }), el("td", { text: port.shape.length ? `[${port.shape.join(", ")}]` : "a single value" }));
  const head = el("tr", {}, ...["Name", "Direction", "Datatype", "Shape"].map((text) => el("th", { scope: "col", text })));
  const body = el("tbody", {}, ...model.inputs.map(line("input")), ...model.outputs.map(line("output")));
  const table = el("table", {}, el("thead", {}, head), body);
  const batching = model.batching
    ? `The rows of this model are proven independent: waiting requests share calls of up to ${model.batching} rows.`
    : `Requests do not share calls: ${model.not_batched ?? "the model is not loaded"}.`;
  return el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Inputs and outputs" }, table), el("p", { class: "hint", text: batching }));
}
