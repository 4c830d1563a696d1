// A picture → 224 × 224 RGB, normalised as for ImageNet → the worker → the five likeliest classes.
const SIZE = 224, MEAN = [0.485, 0.456, 0.406], DEVIATION = [0.229, 0.224, 0.225];
const status = document.querySelector("[role=status]"), list = document.querySelector("ol");
const context = document.querySelector("canvas").getContext("2d", { willReadFrequently: true });
const worker = new Worker("worker.js", { type: "module" });
const labels = await readLabels();

/** Names of the classes, one a line, where labels.txt is beside this page. */
async function readLabels() {
  const response = await fetch("labels.txt");
  return response.ok ? (await response.text()).split("\n") : [];
}

/** The middle square of a picture as planes of red, green and blue. */
function readPixels(picture) {
  const side = Math.min(picture.width, picture.height);
  const left = (picture.width - side) / 2, top = (picture.height - side) / 2;
  context.drawImage(picture, left, top, side, side, 0, 0, SIZE, SIZE);
  const { data } = context.getImageData(0, 0, SIZE, SIZE), area = SIZE * SIZE, pixels = new Float32Array(3 * area);
  for (let i = 0; i < area; i++)
    for (let c = 0; c < 3; c++) pixels[c * area + i] = (data[4 * i + c] / 255 - MEAN[c]) / DEVIATION[c];
  return pixels;
}

function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b)), powers = Array.from(scores, (score) => Math.exp(score - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

function show({ scores, milliseconds }) {
  const best = softmax(scores).map((share, i) => [share, i]).sort(([a], [b]) => b - a).slice(0, 5);
  list.replaceChildren(...best.map(([share, i]) => {
    const item = document.createElement("li");
    item.textContent = `${labels[i] ?? `class ${i}`}: ${(100 * share).toFixed(1)} %`;
    return item;
  }));
  status.textContent = `${milliseconds.toFixed(0)} ms`;
}

worker.onerror = (event) => (status.textContent = event.message || "the model cannot be loaded: see README.md");
worker.onmessage = ({ data }) => {
  if (data.ready) status.textContent = `ready, ${data.megabytes.toFixed(0)} MiB of memory`;
  else if (data.error) status.textContent = data.error;
  else show(data);
};
document.querySelector("input").onchange = async ({ target }) => {
  if (target.files.length) worker.postMessage({ pixels: readPixels(await createImageBitmap(target.files[0])) });
};
