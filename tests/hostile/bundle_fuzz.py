"""Damaged and forged bundles: each is refused with an error of ours, or gives exactly what the whole one gives.

    python tests/hostile/bundle_fuzz.py [BUNDLE.smelt] [--count 10000] [--seed 1]

Without a bundle it makes one of the digits model. `damage` changes bytes anywhere; `forge` changes what the manifest
says and computes the digests again. Workers do the loading, so that a crash is seen and counted. Used by the tests.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from smelt.bundle import container  # noqa: E402
from smelt.bundle.load import deserialize, load  # noqa: E402
from smelt.dtype import Array  # noqa: E402
from smelt.engine.store import recompile  # noqa: E402
from smelt.engine_api import Executable, Signature  # noqa: E402
from smelt.errors import SmeltError  # noqa: E402

EACH = 500  # attacks for one worker


# ---- attacks ----


def damage(whole: bytes, choose: Random) -> bytes:
    """A bundle with bytes changed, lost, added or moved."""
    data = bytearray(whole)
    # Most of a file is weights: half of the attacks go to the head, the manifest and the code.
    place = choose.choice([lambda: choose.randrange(min(len(data), 8192)), lambda: choose.randrange(len(data))])
    at = place()
    match choose.randrange(8):
        case 0:
            data[at] ^= 1 << choose.randrange(8)
        case 1:
            data[at] = choose.randrange(256)
        case 2:
            end = min(len(data), at + choose.choice([2, 8, 64, 4096]))
            data[at:end] = bytes(end - at)
        case 3:
            del data[at:]
        case 4:
            data[at:at] = choose.randbytes(choose.choice([1, 8, 4096]))
        case 5:
            del data[at : at + choose.choice([1, 8, 64, 4096])]
        case 6:
            data += choose.randbytes(choose.choice([1, 4096]))
        case _:
            other, length = place(), choose.choice([8, 64, 4096])
            data[at : at + length], data[other : other + length] = (
                data[other : other + length],
                data[at : at + length],
            )
    return bytes(data)


def forge(whole: bytes, choose: Random) -> bytes:
    """A bundle whose manifest says something else, and whose digests fit."""
    length = int.from_bytes(whole[24:32], "little")
    alignment = int.from_bytes(whole[12:16], "little")
    body = whole[container.round_up(container.HEAD + length, alignment) :]
    manifest = json.loads(whole[container.HEAD : container.HEAD + length])
    for _ in range(choose.randint(1, 3)):
        _twist(manifest, choose)
    written = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    start = container.round_up(container.HEAD + len(written), alignment)
    front = whole[:16] + (start + len(body)).to_bytes(8, "little") + len(written).to_bytes(8, "little")
    named = bytes.fromhex(container.digest(front, bytes(32), written))
    gap = bytes(start - container.HEAD - len(written))
    return front + named + bytes(96) + written + gap + body


ODD: list[Any] = [None, True, -1, 0, 1, 1 << 40, 1 << 70, 0.5, "", "x", "f32", "B*B", [], [[]], {}, {"x": []}]


def _twist(node: Any, choose: Random) -> None:
    """Change one thing somewhere inside."""
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = choose.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and choose.random() < 0.8:
            node = inner
            continue
        match choose.randrange(4):
            case 0:
                del node[key]
            case 1:
                other = choose.choice(keys)
                node[key], node[other] = node[other], node[key]
            case 2 if isinstance(inner, int):
                node[key] = inner + choose.choice([-1, 1, 64, -64, 1 << 32])
            case _:
                node[key] = deepcopy(choose.choice(ODD))
        return


# ---- judging ----


def sample(signature: Signature, seed: int) -> list[Array]:
    """Inputs for a model; open sizes are 3."""
    generator = np.random.default_rng(seed)
    arrays = []
    for port in signature.inputs:
        sizes = port.shape.numbers(dict.fromkeys(port.shape.symbols, 3))
        arrays.append(generator.integers(0, 2, sizes).astype(port.shape.dtype.numpy))
    return arrays


def judge(data: bytes, attack: bytes, inputs: list[Array], wanted: list[bytes], *, run: bool) -> str:
    """refused or harmless; everything else that happens is a mistake of ours."""
    try:
        executable = deserialize(attack, recompile)
    except SmeltError:
        return "refused"
    if run:
        results = [np.asarray(array).tobytes() for array in executable(*inputs)]
        if results != wanted:
            return "wrong"
    return "same bytes" if attack == data else "harmless"


def attack(path: Path, kind: str, seed: int, first: int, count: int) -> Counter[str]:
    """What became of a number of attacks. The numbers are seeds: an attack can be repeated alone."""
    data = path.read_bytes()
    whole: Executable = deserialize(data, recompile)
    inputs = sample(whole.signature, seed)
    wanted = [np.asarray(array).tobytes() for array in whole(*inputs)]
    make: Callable[[bytes, Random], bytes] = damage if kind == "damage" else forge
    seen: Counter[str] = Counter()
    for number in range(first, first + count):
        # Who forges a manifest can make code do anything: what must hold then is that loading ends well.
        verdict = judge(data, make(data, Random(f"{seed}-{number}")), inputs, wanted, run=kind == "damage")
        if verdict == "wrong":
            print(f"attack {kind} {number} with seed {seed} changed the results", file=sys.stderr)
        seen[verdict] += 1
    return seen


def on_disk(path: Path, seed: int, count: int) -> Counter[str]:
    """The same through files and mappings."""
    data = path.read_bytes()
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            file = Path(folder) / f"{number}.smelt"
            file.write_bytes(damage(data, Random(f"disk-{seed}-{number}")))
            try:
                load(file, recompile).close()
                seen["harmless"] += 1
            except SmeltError:
                seen["refused"] += 1
            file.unlink()
    return seen


def _work(path: Path, kind: str, seed: int, first: int, count: int, answers: Any) -> None:
    os.environ.setdefault("SMELT_THREADS", "1")
    answers.put(attack(path, kind, seed, first, count))


def fuzz(path: Path, kind: str, seed: int, count: int) -> Counter[str]:
    """Attacks in workers, one after the other; one that dies is counted as crashed."""
    context = multiprocessing.get_context("spawn")
    seen: Counter[str] = Counter()
    for first in range(0, count, EACH):
        answers = context.SimpleQueue()
        worker = context.Process(target=_work, args=(path, kind, seed, first, min(EACH, count - first), answers))
        worker.start()
        worker.join()
        if worker.exitcode == 0:
            seen += answers.get()
        else:
            print(f"a worker ended with {worker.exitcode}: {kind} {first} with seed {seed}", file=sys.stderr)
            seen["crashed"] += 1
    return seen


def digits(path: Path) -> None:
    """The bundle of the digits model."""
    from smelt.model import load as load_model

    load_model(ROOT / "smelt" / "assets" / "digits.onnx", engine="native").save(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("bundle", nargs="?", type=Path)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.bundle or Path(folder) / "digits.smelt"
        if not chosen.bundle:
            digits(path)
        found = {kind: fuzz(path, kind, chosen.seed, chosen.count) for kind in ("damage", "forge")}
        found["disk"] = on_disk(path, chosen.seed, chosen.count // 20)
    for kind, seen in found.items():
        print(kind, dict(seen))
    raise SystemExit(any(seen["wrong"] or seen["crashed"] for seen in found.values()))


if __name__ == "__main__":
    main()
