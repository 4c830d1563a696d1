"""`cuda_driver.py` through cuda-bindings, on a driver for tests: calls and results are as a driver has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smelt.device import cuda_driver
from tests.cuda.emulated import compiler

HERE = Path(__file__).parent
SCRIPT = """
import ctypes, gc, numpy as np, smelt, smelt.engine.native, smelt.stop
from smelt.device import cuda, cuda_compile, cuda_driver, cuda_queue, registry
from smelt.errors import DeviceError, RunError
from tests.cuda.emulated import HEADER, compile_emulated

class Tested(cuda.Cuda):
    def missing(self): return cuda_driver.missing()
    def compiler(self): return "driver for tests " + HEADER.read_text()
    def compile_file(self, text, machine):
        path = FOLDER + f"/kernels{hash(text) & 0xffffffff}.so"
        with open(path, "wb") as file: file.write(compile_emulated(text))
        return path.encode() + bytes(1)

device = Tested()
registry.KINDS["cuda"] = lambda: device
registry.find_device.cache_clear()
assert cuda.Cuda().missing() == cuda_compile.missing()  # the driver, the chip and the compiler fit
assert "no such CUDA device" in cuda.Cuda(1).missing()
assert device.missing() is None and device.target().name == "sm_90" and device.model == "a driver for tests"
print(dict(device.facts()), device.stats())
replays = []
plain = cuda_queue.CudaQueue.replay
cuda_queue.CudaQueue.replay = lambda self, graph: replays.append(plain(self, graph))
pixels = np.random.default_rng(3).random((5, 64), np.float32)
want = smelt.load("smelt/assets/digits.onnx", engine="reference")(pixels)["probabilities"]
with smelt.load("smelt/assets/digits.onnx", device="cuda", engine="native") as model:
    for _ in range(4):
        np.testing.assert_allclose(model(pixels)["probabilities"], want, rtol=1e-5, atol=1e-7)
assert replays, "the same sizes and addresses again"

class Counted:
    # A library of the driver, with the names of its functions that are called.
    def __init__(self, library): self.library = library
    def __getattr__(self, name):
        found = getattr(self.library, name)
        if name.startswith("cu") and callable(found) and not isinstance(found, type):
            return lambda *given: (called.append(name), found(*given))[1]
        return found

engine, called = smelt.engine.native.native_engine("cuda"), []
text = '''func.func @main(%x: tensor<3x5xf32>) -> tensor<3x5xf32> {
  %0 = stablehlo.negate %x : tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}'''
from smelt.ir.text import parse
from smelt.buffer import HostBuffer
from smelt.weights import Weights
made = engine.compile(parse(text)).prepare(Weights.of({}))
x = engine.put(HostBuffer.of(np.ones((3, 5), np.float32)))
for _ in range(3): made(x)
driver = device.driver
queue = driver.queues.current
assert driver.queues.all == [queue], "one program at a time needs one stream"
driver.direct = Counted(driver.direct)
driver.api = queue._api = Counted(driver.api)
(y,) = made(x)
assert called == ["cuGraphLaunch"], called
assert y.numpy().tolist() == [[-1] * 5] * 3
del y
called.clear()
array, library = np.arange(15, dtype=np.float32).reshape(3, 5), driver.direct.library
small = engine.put(HostBuffer.of(array))  # its bytes are staged: the call waits for nothing
assert [each for each in called if "Alloc" not in each] == ["cuMemcpyHtoDAsync_v2"], called
called.clear()
small.copy_to_host()
copied = called[-2:]
assert copied == ["cuMemcpyDtoHAsync_v2", "cuEventRecord"], called
called.clear()
assert np.array_equal(small.numpy(), array) and called == ["cuEventSynchronize"], called  # not for the stream
called.clear()
for _ in range(100):  # a piece comes again, read or not
    small.copy_to_host()
assert called == copied * 100 and len(queue._pieces) == cuda_queue.PIECES - 1, called
assert np.array_equal(small.numpy(), array) and np.array_equal(small.numpy(), array)
assert len(queue._pieces) == cuda_queue.PIECES
small.copy_to_host()
ring = [small]
ring.append(ring)
del small, ring
called.clear()
gc.collect()  # of a buffer that is copied: its piece comes again, with its event
assert len(queue._pieces) == cuda_queue.PIECES and "cuEventDestroy" not in called, called
called.clear()
cuda_queue.SMALL = 0
for pinned in (0, array.ctypes.data):  # the device reads memory that is pinned later: it may change after the call
    ctypes.c_uint64.in_dll(library, "fake_pinned").value = pinned
    engine.put(HostBuffer.of(array))
asked = ["cuMemcpyHtoDAsync", "cuPointerGetAttribute"]
assert [each for each in called if "Alloc" not in each] == [*asked, *asked, "cuStreamSynchronize"], called
called.clear()
(y,) = made(x, stop=smelt.stop.Stop(5.0))
assert called == ["cuGraphLaunch", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy"], called
called.clear()
other = engine.compile(parse(text)).prepare(Weights.of({}))  # a second program has a stream of its own
for _ in range(6): (z,) = other(x)
second = z.block.home
assert driver.queues.all == [queue, second] and x.block.home is queue
assert called.count("cuStreamWaitEvent") == 1, called  # for x, the first time
called.clear()
(z,) = other(x)  # that is in order already
assert called == ["cuGraphLaunch"], called
for _ in range(6):
    called.clear()
    (y,) = made(x)
assert called == ["cuGraphLaunch"], called
for _ in range(5):
    called.clear()
    (z,) = made(other(x)[0])
waits = [each for each in called if each in ("cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize")]
assert waits[:2] == ["cuEventRecord", "cuStreamWaitEvent"] and len(waits) <= 4, called  # no wait of the host
assert not any("EventCreate" in each for each in called), "events come again"
assert z.numpy().tolist() == [[1] * 5] * 3
second._api = driver.api.library
del z
driver.direct = driver.direct.library
driver.api = queue._api = driver.api.library
first = queue.event()
assert driver.seconds(first, queue.event()) >= 0
taken = queue.allocate(1000)
queue.free(taken)
assert queue.allocate(600) == taken, "freed memory comes again"
queue.free(taken)
driver.release()
cuda_queue.LARGE = 1 << 20  # pinned memory for smaller copies than usual
large = np.random.default_rng(4).integers(0, 256, (3 << 20) + 5, np.uint8)
there = device.copy(HostBuffer.of(large))
assert np.array_equal(there.numpy(), large)
del there
driver.release()
driver.spare.most = 2048
large, small = queue.allocate(2048), queue.allocate(512)
queue.free(large)
queue.free(small)
assert driver.spare.bytes == 512, "too much: large memory goes first"
assert queue.allocate(512) == small
queue.free(small)
try:
    queue.allocate(1 << 40)
except RunError as error:
    assert "no memory left on the GPU" in str(error)
else:
    raise AssertionError("a terabyte")
assert not driver.spare.bytes, "spare memory was tried first"
try:
    registry.find_device("cuda:7").target()
except DeviceError as error:
    assert "cuda:0" in str(error)
else:
    raise AssertionError("an eighth device")
class Lent:  # an array of another library
    def __dlpack__(self, stream):
        assert stream == queue.stream != 0, "its work goes in front of ours"
        return y.__dlpack__(stream=1)
    def __dlpack_device__(self): return y.__dlpack_device__()
assert made(Lent())[0].numpy().tolist() == [[1] * 5] * 3
assert len(queue._kept) == 1
made(Lent())
assert len(queue._kept) == 1, "the work before is done"
library = driver.direct
ctypes.c_int.in_dll(library, "fake_version").value = 11040
assert "too old" in device.missing() and "CUDA 11.4" in device.lacks("sm_90", ())
ctypes.c_int.in_dll(library, "fake_version").value = 13000
ctypes.c_int.in_dll(library, "fake_status").value = 700
for message in ("used memory that is not its own", "the GPU was lost before"):
    for use in (y.numpy, lambda: made(x)):
        try:
            use()
        except DeviceError as error:
            assert message in str(error) and 'device="cpu" still works' in str(error), error
        else:
            raise AssertionError(message)
        message = "the GPU was lost before"
del x, y
made.close()
again = smelt.load("smelt/assets/digits.onnx", engine="native", device="cpu")(pixels)["probabilities"]
assert again.shape == want.shape
print("done")
"""


@pytest.mark.skipif(compiler() != ["g++"], reason="needs g++")
def test_calls_of_the_driver(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings")
    if cuda_driver.missing() is None:
        pytest.skip("this machine has a driver")
    made = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", made, HERE / "fake_driver.c", "-ldl"], check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "SMELT_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(HERE.parents[1]),
    }
    script = f"FOLDER = {str(tmp_path)!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n")
    assert not done.stderr, done.stderr  # of memory that is freed later
