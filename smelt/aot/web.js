
/** An error of the model: what was expected and what came. `status` is a number of smelt_status in api.h. */
export class ModelError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ModelError";
    this.status = status;
  }
}

const BAD_ARGUMENT = 1, OUT_OF_MEMORY = 4, BAD_FILE = 6;
const TENSOR = 152, SIZES = 8, DATA = 136, BYTES = 144; // smelt_tensor in 32-bit memory

/** The bytes of a source: a URL or path, a Response, an ArrayBuffer or an array of bytes. */
async function readBytes(source) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (typeof Response !== "undefined" && source instanceof Response) return readResponse(source);
  const url = new URL(source, import.meta.url);
  if (url.protocol !== "file:") return readResponse(await fetch(url));
  const { readFile } = await import("node:fs/promises");
  return new Uint8Array(await readFile(url));
}

async function readResponse(response) {
  if (!response.ok) throw new ModelError(`cannot read ${response.url}\n  got      ${response.status} ${response.statusText}`, BAD_FILE);
  return new Uint8Array(await response.arrayBuffer());
}

/** Loads the module, and the weights where they are beside it. */
export async function load(options = {}) {
  const source = options.module ?? new URL(encodeURIComponent(FILE), import.meta.url);
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(await readBytes(source));
  const given = WEIGHTS === null ? null : options.weights ?? new URL(encodeURIComponent(WEIGHTS), import.meta.url);
  const weights = given === null ? null : await readBytes(given);
  const { exports } = await WebAssembly.instantiate(module, {});
  return new Model(exports, weights, String(given));
}

function describe(value) {
  if (value === undefined) return "nothing";
  const data = value?.data ?? value, kind = data?.constructor?.name ?? typeof data;
  return `${kind}[${value?.shape ? value.shape.join(", ") : data?.length ?? ""}]`;
}

function misfit(port, value) {
  return new ModelError(
    `the input '${port.name}' does not fit\n  expected ${port.shape} in ${indefinite(port.array.name)}\n  got      ${describe(value)}`,
    BAD_ARGUMENT,
  );
}

const indefinite = (word) => (/^[AEIOU]/.test(word) ? `an ${word}` : `a ${word}`);

/** The data and sizes of an input. Without a shape, the one dynamic dimension follows from the number of elements. */
function readInput(port, value) {
  const data = value instanceof port.array ? value : value?.data;
  if (!(data instanceof port.array)) throw misfit(port, value);
  const given = value.shape, count = data.length / port.width;
  if (given !== undefined) {
    const fits = Array.isArray(given) && given.length === port.sizes.length && given.every((n) => Number.isSafeInteger(n) && n >= 0);
    if (!fits || given.reduce((product, n) => product * n, 1) !== count) throw misfit(port, value);
    return { data, sizes: given };
  }
  const known = port.sizes.reduce((product, n) => (n < 0 ? product : product * n), 1);
  const open = port.sizes.filter((n) => n < 0).length, size = open ? count / known : 0;
  if (open > 1 || (open ? !Number.isInteger(size) : known !== count)) throw misfit(port, value);
  return { data, sizes: port.sizes.map((n) => (n < 0 ? size : n)) };
}

/** A model in an instance of its module. Calls are synchronous; a Worker keeps a page responsive meanwhile. */
export class Model {
  #wasm;
  #blocks = INPUTS.map(() => ({ address: 0, bytes: 0 }));

  constructor(exports, weights, name) {
    this.#wasm = exports;
    this.inputs = INPUTS.map(({ name, shape, sizes }) => ({ name, shape, sizes }));
    this.outputs = OUTPUTS.map(({ name, shape, sizes }) => ({ name, shape, sizes }));
    exports._initialize?.();
    if (weights !== null) {
      const address = this.#allocate(weights.length, exports.smelt_web_weights);
      new Uint8Array(exports.memory.buffer, address, weights.length).set(weights);
    }
    const label = new TextEncoder().encode(name), text = this.#allocate(label.length + 1);
    const room = new Uint8Array(exports.memory.buffer, text, label.length + 1);
    room.set(label), (room[label.length] = 0);
    const status = exports.smelt_web_create(text);
    const error = status ? this.#error(status) : null;
    exports.smelt_web_release(text, label.length + 1);
    if (error) throw error;
  }

  /** Bytes of the module's memory, which never shrinks. */
  get memoryBytes() {
    return this.#wasm.memory.buffer.byteLength;
  }

  /** Runs the model: inputs by name, each an array of its element type or `{ data, shape }`; outputs likewise. */
  call(inputs) {
    const unknown = Object.keys(inputs).find((name) => !INPUTS.some((port) => port.name === name));
    if (unknown !== undefined) {
      const expected = INPUTS.map((port) => port.name).join(", ");
      throw new ModelError(`there is no input '${unknown}'\n  expected ${expected}`, BAD_ARGUMENT);
    }
    const read = INPUTS.map((port) => readInput(port, inputs[port.name]));
    read.forEach(({ data, sizes }, i) => this.#place(i, INPUTS[i], data, sizes));
    OUTPUTS.forEach((_, r) => this.#view(INPUTS.length + r).setUint32(DATA, 0, true));
    const status = this.#wasm.smelt_web_call();
    if (status) throw this.#error(status);
    const outputs = Object.fromEntries(OUTPUTS.map((port, r) => [port.name, this.#read(INPUTS.length + r, port)]));
    this.#wasm.smelt_web_forget();
    return outputs;
  }

  /** The address of a new block. Addresses have 32 bits, and a larger size would be cut to them. */
  #allocate(bytes, allocate = this.#wasm.smelt_web_allocate) {
    const address = bytes < 2 ** 32 ? allocate(bytes) >>> 0 : 0;
    if (!address) throw new ModelError(`no memory left\n  got      ${bytes} bytes requested`, OUT_OF_MEMORY);
    return address;
  }

  /** The tensor of a place. Views end when the memory grows, so they are made anew. */
  #view(place) {
    return new DataView(this.#wasm.memory.buffer, (this.#wasm.smelt_web_tensors() >>> 0) + TENSOR * place, TENSOR);
  }

  #place(i, port, data, sizes) {
    const block = this.#blocks[i];
    if (block.bytes < data.byteLength || !block.address) {
      if (block.address) this.#wasm.smelt_web_release(block.address, block.bytes);
      block.address = 0; // also where the next line throws
      block.address = this.#allocate(data.byteLength), block.bytes = data.byteLength;
    }
    new Uint8Array(this.#wasm.memory.buffer, block.address, data.byteLength).set(
      new Uint8Array(data.buffer, data.byteOffset, data.byteLength),
    );
    const view = this.#view(i);
    view.setInt32(0, port.dtype, true), view.setInt32(4, sizes.length, true);
    sizes.forEach((size, d) => view.setBigInt64(SIZES + 8 * d, BigInt(size), true));
    view.setUint32(DATA, block.address, true), view.setBigInt64(BYTES, BigInt(data.byteLength), true);
  }

  #read(place, port) {
    const view = this.#view(place), rank = view.getInt32(4, true);
    const shape = Array.from({ length: rank }, (_, d) => Number(view.getBigInt64(SIZES + 8 * d, true)));
    const count = shape.reduce((product, n) => product * n, port.width);
    return { data: new port.array(this.#wasm.memory.buffer, view.getUint32(DATA, true), count).slice(), shape };
  }

  #error(status) {
    const bytes = new Uint8Array(this.#wasm.memory.buffer), begin = this.#wasm.smelt_web_error() >>> 0;
    return new ModelError(new TextDecoder().decode(bytes.slice(begin, bytes.indexOf(0, begin))), status);
  }
}
