// The page: one request every two seconds, a table of models, charts, and a panel for the model that is chosen.

import { ask, bytesText, el, key, numberText, Refused, send } from "./api.js";
import { Chart, Sparkline } from "./chart.js";
import { chatPanel, embeddingPanel, rankingPanel } from "./chat.js";
import { programPanel } from "./program.js";
import { signaturePanel, snippetsPanel } from "./snippets.js";
import { tensorPanel } from "./tensors.js";

const EVERY = 2000; // milliseconds between two looks at the server
const byId = (id) => document.getElementById(id);
const rows = new Map(); // "name/version" → what the table holds of it
let before = null; // the last answer and when it came
let info = null;
let chosen = null; // "name/version"
let tab = "try";

// ---- charts ----

const charts = {
  requests: new Chart("Requests per second"),
  latency: new Chart("Latency, ms", ["p50", "p99"]),
  tokens: new Chart("Generated tokens per second"),
  cpu: new Chart("Processor, % of one core"),
  memory: new Chart("Memory of the server", [""], bytesText),
};
for (const chart of Object.values(charts)) byId("charts").append(chart.element);
charts.tokens.element.hidden = true;

const sum = (models, read) => models.reduce((total, each) => total + read(each), 0);
const served = (each) => each.requests.success;

/** A quantile of what was counted between two looks, in ms: linear inside a bucket; null without requests. */
function quantile(now, earlier, share) {
  const counts = now.counts.map((count, i) => count - (earlier?.counts[i] ?? 0));
  const total = counts.reduce((a, b) => a + b, 0);
  if (total <= 0) return null;
  let left = share * total;
  for (let i = 0; i < counts.length; i++) {
    if (left <= counts[i] && counts[i] > 0) {
      const low = i ? now.bounds[i - 1] : 0;
      const high = now.bounds[i] ?? now.bounds.at(-1);
      return (low + (high - low) * (left / counts[i])) * 1000;
    }
    left -= counts[i];
  }
  return now.bounds.at(-1) * 1000;
}

function together(models) {
  const bounds = models[0]?.latency.bounds ?? [];
  const counts = bounds.concat([0]).map((_, i) => sum(models, (each) => each.latency.counts[i]));
  return { bounds, counts };
}

function drawCharts(now, earlier, seconds) {
  charts.memory.add(now.resident_bytes);
  charts.tokens.element.hidden = !now.models.some((each) => each.kind === "chat");
  if (earlier === null) return;
  const rate = (read) => Math.max(0, (sum(now.models, read) - sum(earlier.models, read)) / seconds);
  const [all, old] = [together(now.models), together(earlier.models)];
  charts.requests.add(rate(served));
  charts.latency.add(quantile(all, old, 0.5), quantile(all, old, 0.99));
  charts.tokens.add(rate((each) => each.tokens.generated));
  charts.cpu.add((100 * (now.cpu_seconds - earlier.cpu_seconds)) / seconds);
}

// ---- the table ----

const label = (each) => `${each.name}/${each.version}`;

function row(each) {
  const name = el("button", { type: "button", class: "link", text: each.name, onclick: () => choose(label(each), true) });
  const version = el("span", { class: "version", text: `v${each.version}` });
  const made = { name, spark: new Sparkline(), state: el("span"), rate: el("td", { class: "number" }) };
  made.latency = el("td", { class: "number" });
  made.waiting = el("td", { class: "number" });
  made.memory = el("td", { class: "number" });
  made.action = el("button", { type: "button", class: "quiet small" });
  made.action.addEventListener("click", () => act(made.now));
  made.actions = el("td", {}, made.action);
  const head = el("th", { scope: "row" }, name, " ", version);
  const spark = el("td", { class: "spark" }, made.spark.element);
  const cells = [head, el("td", {}, made.state), made.rate, spark, made.latency, made.waiting, made.memory];
  made.element = el("tr", {}, ...cells, made.actions);
  return made;
}

function drawTable(now, earlier, seconds) {
  const body = byId("models").tBodies[0];
  const known = new Set(now.models.map(label));
  for (const [name, made] of rows) {
    if (!known.has(name)) {
      made.element.remove();
      rows.delete(name);
    }
  }
  byId("actions-head").hidden = !now.admin;
  for (const each of now.models) {
    const old = earlier?.models.find((other) => label(other) === label(each));
    let made = rows.get(label(each));
    if (!made) {
      made = row(each);
      rows.set(label(each), made);
      body.append(made.element);
    }
    made.now = each;
    made.state.className = `state ${each.state.toLowerCase()}`;
    made.state.textContent = each.state.toLowerCase();
    made.state.title = each.reason;
    const rate = old ? Math.max(0, served(each) - served(old)) / seconds : 0;
    made.spark.add(rate);
    made.rate.textContent = numberText(rate);
    const p50 = quantile(each.latency, old?.latency, 0.5) ?? quantile(each.latency, null, 0.5);
    made.latency.textContent = p50 === null ? "–" : `${numberText(p50)} ms`;
    made.waiting.textContent = String(each.waiting);
    made.memory.textContent = bytesText(each.memory_bytes);
    made.actions.hidden = !now.admin;
    made.action.textContent = each.state === "READY" ? "Unload" : "Load";
    made.action.setAttribute("aria-label", `${made.action.textContent} ${each.name}`);
    made.action.disabled = each.state === "LOADING";
    if (label(each) === chosen) made.name.setAttribute("aria-current", "true");
    else made.name.removeAttribute("aria-current");
  }
}

async function act(each) {
  const verb = each.state === "READY" ? "unload" : "load";
  try {
    await send(`/v2/repository/models/${encodeURIComponent(each.name)}/${verb}`, { method: "POST", body: {} });
    trouble("");
  } catch (error) {
    trouble(`${each.name}: ${error.message}`);
  }
  await look();
  if (label(each) === chosen) choose(chosen, false);
}

// ---- one model ----

const TABS = { try: "Try it", snippets: "Code", signature: "Inputs and outputs", program: "Program" };

function panelFor(each) {
  if (tab === "snippets") return snippetsPanel(each);
  if (tab === "signature") return signaturePanel(each);
  if (tab === "program") return programPanel(each, info.admin);
  if (each.state !== "READY") return el("p", { text: `${each.name} is not ready: ${each.reason || each.state}` });
  return { tensors: tensorPanel, chat: chatPanel, embedding: embeddingPanel, ranking: rankingPanel }[each.kind](each);
}

function drawTabs() {
  const made = Object.entries(TABS).map(([name, text]) =>
    el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === tab), "aria-controls": "panel",
      tabindex: name === tab ? "0" : "-1", text, onclick: () => openTab(name),
    }),
  );
  byId("tabs").replaceChildren(...made);
  byId("panel").setAttribute("aria-labelledby", `tab-${tab}`);
}

function openTab(name) {
  tab = name;
  drawTabs();
  byId(`tab-${name}`).focus();
  const each = rows.get(chosen)?.now;
  if (each) byId("panel").replaceChildren(panelFor(each));
}

byId("tabs").addEventListener("keydown", (event) => {
  const names = Object.keys(TABS);
  const at = names.indexOf(tab);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  openTab(names.at(next % names.length));
});

function choose(name, move) {
  const each = rows.get(name)?.now;
  if (!each) return;
  chosen = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  byId("detail").hidden = false;
  byId("detail-title").textContent = each.name;
  const kind = { tensors: "tensors in, tensors out", chat: "language model", embedding: "text embeddings", ranking: "relevance of texts" }[each.kind];
  const batches = each.batching ? `; batches of up to ${each.batching} rows` : "";
  const loaded = each.state === "READY" ? `; loaded in ${numberText(each.load_seconds)} s` : "";
  byId("detail-about").textContent = `Version ${each.version}: ${kind}${batches}${loaded}.`;
  drawTabs();
  byId("panel").replaceChildren(panelFor(each));
  drawTable(info, info, 1);
  if (move) byId("detail-title").focus();
}

// ---- the server ----

function trouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}

function uptime(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** Look at the server once. The result says how long to wait for the next look. */
async function look() {
  let now;
  try {
    now = await ask("/api/v1/info");
  } catch (error) {
    before = null;
    byId("server").textContent = error instanceof Refused ? "Refused" : "Not reachable";
    if (error.status === 401) {
      askForKey(key.get() ? "This key is not known here." : "");
      return null;
    }
    trouble(error instanceof Refused ? error.message : "The server does not answer.");
    return Math.max(EVERY, 1000 * (error.retryAfter ?? 0));
  }
  const time = performance.now();
  const earlier = before?.now ?? null;
  const seconds = before ? (time - before.time) / 1000 : 1;
  if (before && seconds < 0.2) return EVERY;
  if (before === null) trouble("");
  const first = info === null;
  before = { now, time };
  info = now;
  byId("metrics-link").hidden = now.key !== null; // a link sends no key
  const state = now.ready ? "ready" : "not all models are ready";
  const said = `Version ${now.version}, ${state}, up ${uptime(now.uptime_seconds)}${now.key ? `, key ${now.key}` : ""}`;
  if (byId("server").textContent !== said) byId("server").textContent = said;
  drawCharts(now, earlier, seconds);
  drawTable(now, earlier, seconds);
  if (first) {
    const asked = decodeURIComponent(location.hash.slice(1));
    choose(rows.has(asked) ? asked : label(now.models.find((each) => each.state === "READY") ?? now.models[0]), false);
  }
  return EVERY;
}

let timer = null;

async function watch() {
  clearTimeout(timer);
  const wait = document.hidden ? EVERY : await look();
  if (wait !== null) timer = setTimeout(watch, wait);
}

function askForKey(wrong) {
  byId("key").value = key.get();
  byId("key-wrong").textContent = wrong;
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("key-button").addEventListener("click", () => askForKey(""));
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close());
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key-dialog").close();
  watch();
});

watch();
