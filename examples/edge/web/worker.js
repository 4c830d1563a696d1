// Runs the model beside the page, so that the page never waits. Messages: { pixels } in, { scores, milliseconds } out.
import { load } from "./mobilenet.js";

const model = await load();
const [input] = model.inputs, [output] = model.outputs;
postMessage({ ready: true, megabytes: model.memoryBytes / 2 ** 20 });

onmessage = ({ data: { pixels } }) => {
  const begin = performance.now();
  try {
    const found = model.call({ [input.name]: pixels });
    postMessage({ scores: found[output.name].data, milliseconds: performance.now() - begin });
  } catch (error) {
    postMessage({ error: error.message });
  }
};
