// Language models: a chat that streams, plain completions, and embeddings.

import { ask, el, labelled, numberText, send } from "./api.js";

/** The data of server-sent events, decoded, up to `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const text = line.slice(5).trim();
      if (text === "[DONE]") return;
      yield JSON.parse(text);
    }
  }
}

export function chatPanel(model) {
  const said = []; // the conversation
  let running = null;
  const log = el("div", { class: "chat", role: "log", "aria-label": `Conversation with ${model.name}`, tabindex: "0" });
  const status = el("p", { class: "hint", role: "status" });
  const system = el("textarea", { rows: "2" });
  const temperature = el("input", { type: "number", min: "0", max: "2", step: "0.1", value: "0.7" });
  const most = el("input", { type: "number", min: "1", max: "100000", value: "512" });
  const mode = el("select", {}, el("option", { value: "chat", text: "Chat" }), el("option", { value: "text", text: "Continue the text" }));
  const text = el("textarea", { rows: "3", required: true });
  const submit = el("button", { type: "submit", text: "Send" });
  const stop = el("button", { type: "button", class: "quiet", text: "Stop", disabled: true, onclick: () => running?.abort() });
  const clear = el("button", { type: "button", class: "quiet", text: "New conversation" });
  const settings = el(
    "details", {}, el("summary", { text: "Settings" }),
    el("div", { class: "row" }, labelled("Mode", mode), labelled("Temperature", temperature), labelled("Most tokens", most)),
    labelled("System prompt", system),
  );
  const form = el(
    "form", { class: "try" }, log, status, labelled("Message", text, "Enter sends, Shift+Enter starts a new line."),
    el("div", { class: "buttons" }, submit, stop, clear), settings,
  );

  const add = (role, content) => {
    const body = el("p", { text: content });
    log.append(el("div", { class: `message ${role}` }, el("h3", { text: role === "user" ? "You" : model.name }), body));
    log.scrollTop = log.scrollHeight;
    return body;
  };
  clear.addEventListener("click", () => {
    running?.abort();
    said.length = 0;
    log.replaceChildren();
    status.textContent = "";
    text.focus();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running || !text.value.trim()) return;
    const asked = text.value;
    text.value = "";
    said.push({ role: "user", content: asked });
    add("user", asked);
    const answer = { role: "assistant", content: "" };
    const place = add("assistant", "");
    running = new AbortController();
    submit.disabled = true;
    stop.disabled = false;
    status.textContent = "The model is writing …";
    const shared = {
      model: model.name, temperature: Number(temperature.value), max_tokens: Number(most.value), stream: true,
      stream_options: { include_usage: true },
    };
    const first = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    const chat = mode.value === "chat";
    const body = chat ? { ...shared, messages: [...first, ...said] } : { ...shared, prompt: asked };
    const started = performance.now();
    let usage = null;
    try {
      const path = chat ? "/v1/chat/completions" : "/v1/completions";
      for await (const event of events(await send(path, { method: "POST", body, signal: running.signal }))) {
        if (event.error) throw new Error(event.error.message ?? event.error);
        const choice = event.choices?.[0];
        answer.content += (chat ? choice?.delta?.content : choice?.text) ?? "";
        usage = event.usage ?? usage;
        place.textContent = answer.content;
        log.scrollTop = log.scrollHeight;
      }
      const seconds = (performance.now() - started) / 1000;
      const count = usage?.completion_tokens ?? 0;
      status.textContent = `${count} tokens in ${numberText(seconds)} s, ${numberText(count / seconds)} a second.`;
    } catch (error) {
      status.textContent = error.name === "AbortError" ? "Stopped." : "";
      if (error.name !== "AbortError") place.replaceChildren(el("span", { class: "wrong", text: error.message }));
    }
    if (answer.content) said.push(answer);
    else said.pop();
    running = null;
    submit.disabled = false;
    stop.disabled = true;
  });
  return form;
}

export function embeddingPanel(model) {
  return textsPanel("Embed", [], async (result, texts) => {
    const answer = await ask("/v1/embeddings", { method: "POST", body: { model: model.name, input: texts } });
    showSimilar(result, texts, answer.data.map((row) => row.embedding));
  });
}

export function rankingPanel(model) {
  const query = el("input", { type: "text", required: true });
  return textsPanel("Rank", [labelled("Query", query, "")], async (result, texts) => {
    const body = { model: model.name, query: query.value, documents: texts };
    const answer = await ask("/v1/rerank", { method: "POST", body });
    const row = ({ index, relevance_score: score }) =>
      el("tr", {}, el("th", { scope: "row", text: texts[index].slice(0, 60) }), el("td", { class: "number", text: score.toFixed(3) }));
    const head = el("tr", {}, el("th", { scope: "col", text: "Text" }), el("th", { scope: "col", class: "number", text: "Relevance" }));
    result.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...answer.results.map(row))));
  });
}

/** A form of texts, one a line; `show` asks the server and fills the result. */
function textsPanel(action, before, show) {
  const text = el("textarea", { rows: "5", required: true });
  const result = el("div", { class: "result", role: "status" });
  const submit = el("button", { type: "submit", text: action });
  const form = el("form", { class: "try" }, ...before, labelled("Texts", text, "One text a line."), el("div", { class: "buttons" }, submit), result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const texts = text.value.split("\n").filter((line) => line.trim());
    if (!texts.length) return;
    submit.disabled = true;
    try {
      await show(result, texts);
    } catch (error) {
      result.replaceChildren(el("p", { class: "wrong", text: error.message }));
    }
    submit.disabled = false;
  });
  return form;
}

function showSimilar(place, texts, vectors) {
  const dot = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
  const cosine = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  const parts = [el("p", { text: `${vectors.length} vectors of ${vectors[0].length} numbers.` })];
  if (texts.length > 1) {
    const head = el("tr", {}, el("th", { scope: "col", text: "Cosine similarity" }), ...texts.map((_, i) => el("th", { scope: "col", class: "number", text: String(i + 1) })));
    const body = texts.map((text, i) =>
      el("tr", {}, el("th", { scope: "row", text: `${i + 1}: ${text.slice(0, 60)}` }),
        ...vectors.map((other) => el("td", { class: "number", text: cosine(vectors[i], other).toFixed(3) }))));
    parts.push(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Similarities" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
  }
  parts.push(el("details", {}, el("summary", { text: "Vectors" }), el("pre", { tabindex: "0", text: JSON.stringify(vectors) })));
  place.replaceChildren(...parts);
}
