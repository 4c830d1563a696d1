"""`python -m bench.cuda_load [--models DIR] [--gigabytes N] [--out FILE.json]`: how fast models get onto a GPU.

    start     a bundle for this GPU: from the start of Python to the first result, without NVRTC, and its parts
    copies    GB/s to the GPU: pinned memory alone, reading a file alone, a file, a mapped array, an ordinary copy

The file is in the page cache: the rate of a disk that is slower than the bus is the disk's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DIGITS = Path(__file__).resolve().parents[1] / "smelt/assets/digits.onnx"
RUNS = 3
CHILD = """
import sys, time
begin = time.perf_counter()
import numpy as np, smelt
imported = time.perf_counter()
model = smelt.load(sys.argv[1], device="cuda", engine="native")
loaded = time.perf_counter()
shapes = [(each.name, [s if isinstance(s, int) else 1 for s in each.shape.sizes], each.shape.dtype.numpy)
          for each in model.signature.inputs]
result = model.run({name: np.zeros(sizes, kind) for name, sizes, kind in shapes})
done = time.perf_counter()
assert not any("nvrtc" in name for name in sys.modules), "NVRTC is not needed"
print("seconds", imported - begin, loaded - imported, done - loaded)
"""


def measure_start(model: Path, folder: Path) -> dict[str, Any]:
    """Seconds of a new process until the first result of the model's bundle; the best of some."""
    import smelt

    bundle = folder / f"{model.stem}.smelt"
    begin = time.perf_counter()
    with smelt.load(model, device="cuda", engine="native") as made:
        made.save(bundle)
    found: dict[str, Any] = {"written": time.perf_counter() - begin, "bytes": bundle.stat().st_size, "runs": []}
    for _ in range(RUNS):
        begin = time.perf_counter()
        command = [sys.executable, "-c", CHILD, str(bundle)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        whole = time.perf_counter() - begin
        if done.returncode:
            return found | {"error": done.stderr[-1500:]}
        parts = [float(each) for each in done.stdout.split()[1:]]
        found["runs"].append(dict(zip(("import", "load", "first call"), parts, strict=True)) | {"process": whole})
    return found | {"least": min(each["process"] for each in found["runs"])}


def measure_copies(count: int, folder: Path) -> dict[str, float]:
    """GB/s of each way to the GPU."""
    from concurrent.futures import ThreadPoolExecutor

    from smelt.device import cuda_queue
    from smelt.device.pinned import CHUNK, THREADS
    from smelt.device.registry import find_device

    queue = find_device("cuda").driver.queues.current  # type: ignore[attr-defined]
    path, block = folder / "weights", np.random.default_rng(0).integers(0, 256, CHUNK, np.uint8)
    count = count // CHUNK * CHUNK
    with path.open("wb") as file:
        for _ in range(count // CHUNK):
            file.write(block.tobytes())
    mapped = np.memmap(path, np.uint8, "r")
    address = queue.allocate(count)

    def read(part: Any, start: int) -> None:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            file.readinto(part)

    def read_all() -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            parts = [np.empty(CHUNK, np.uint8) for _ in range(THREADS)]
            starts = range(0, count, CHUNK)
            list(pool.map(lambda i: read(parts[i % THREADS], starts[i]), range(len(starts))))

    def plain() -> None:
        usual, cuda_queue.LARGE = cuda_queue.LARGE, 1 << 60
        queue.upload(address, mapped)
        cuda_queue.LARGE = usual

    ways: dict[str, Callable[[], object]] = {
        "pinned memory alone": lambda: queue.fill(address, count, lambda part, start: None),
        "reading the file alone": read_all,
        "the file": lambda: queue.fill(address, count, read),
        "a mapped array": lambda: queue.upload(address, mapped),
        "an ordinary copy": plain,
    }
    found = {}
    for name, work in ways.items():
        work()  # once to warm up
        queue.wait()
        begin = time.perf_counter()
        work()
        queue.wait()
        found[name] = count / (time.perf_counter() - begin) / 1e9
        print(f"{name}: {found[name]:.1f} GB/s", flush=True)
    probe = np.empty(CHUNK, np.uint8)
    queue.download(probe, address + count - CHUNK)
    assert np.array_equal(probe, block), "the bytes are those of the file"
    queue.free(address)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="*", default=[DIGITS])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for model in options.models:
            found[f"start {model.stem}"] = measure_start(model, Path(name))
            print(model.stem, json.dumps(found[f"start {model.stem}"]), flush=True)
        found["copies"] = measure_copies(int(options.gigabytes * 1e9), Path(name))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
