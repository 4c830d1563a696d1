"""Damaged and forged bundles: each is refused with an error of ours, or runs without touching what is not its own.

    python tests/hostile/bundle_fuzz.py [BUNDLE.smelt] [--count 10000] [--seed 1]

Without a bundle it makes one of the digits model. `damage` changes bytes anywhere; `forge` changes what the manifest
says and computes the digests and the checksum again, so that the loader has to find out what is wrong. Workers load and
run, so that a crash is seen and counted. Used by the tests.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import struct
import sys
import tempfile
import traceback
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
from smelt.device.runtime import runtime  # noqa: E402
from smelt.dtype import Array  # noqa: E402
from smelt.engine.store import recompile  # noqa: E402
from smelt.engine_api import Executable, Signature  # noqa: E402
from smelt.errors import SmeltError  # noqa: E402
from smelt.run.load import deserialize, load  # noqa: E402

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
    """A bundle whose manifest says something else, or with other weights, and whose digests and checksum fit."""
    length = int.from_bytes(whole[24:32], "little")
    alignment = int.from_bytes(whole[12:16], "little")
    body = bytearray(whole[container.round_up(container.HEAD + length, alignment) :])
    manifest = json.loads(whole[container.HEAD : container.HEAD + length])
    if choose.random() < 0.1:
        _change_weights(manifest, body, choose)
    parts = _parts(manifest)
    for _ in range(choose.randint(1, 3)):
        _twist(choose.choice(parts), choose)
    return assemble(manifest, bytes(body), alignment)


def assemble(manifest: dict[str, Any], body: bytes, alignment: int = container.PAGE) -> bytes:
    """A bundle of a manifest and a body: whatever covers them is computed again."""
    manifest["checksum"] = "0" * 16
    start = container.round_up(container.HEAD + len(_written(manifest)), alignment)
    gap = bytes(start - container.HEAD - len(_written(manifest)))
    found = container.checksum(runtime(), [memoryview(gap), memoryview(body)])
    manifest["checksum"] = f"{found:016x}"
    written = _written(manifest)
    front = struct.pack("<8sIIQQ", container.MAGIC, container.FORMAT, alignment, start + len(body), len(written))
    named = bytes.fromhex(container.digest(front, bytes(32), written))
    return front + named + bytes(96) + written + gap + body


def _written(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _change_weights(manifest: dict[str, Any], body: bytearray, choose: Random) -> None:
    """Other bytes in a section of weights; code can do anything and is left alone."""
    variants = [variant for program in manifest["programs"] for variant in program["variants"]]
    places = [index for variant in variants for index, _ in variant["bound"] or ()]
    section: list[Any] = manifest["sections"][choose.choice(places)] if places else [0, 0, ""]
    offset, length = int(section[0]), int(section[1])
    if length:
        body[offset + choose.randrange(length)] ^= 1 << choose.randrange(8)
        section[2] = container.digest(bytes(body[offset : offset + length]))


def _parts(manifest: dict[str, Any]) -> list[Any]:
    """Where something is changed: mostly what is said about code."""
    parts: list[Any] = [manifest]
    for variant in (variant for program in manifest["programs"] for variant in program["variants"]):
        entry = variant["main"]
        parts += [variant, variant["bound"], entry, *(entry[name] for name in ("arguments", "results", "constants"))]
    return [part for part in parts if part]


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    1 << 40,
    1 << 70,
    0.5,
    "",
    "x",
    "f32",
    "i8",
    "B*B",
    "N",
    [],
    [[]],
    {},
    {"x": []},
]


def _twist(node: Any, choose: Random) -> None:
    """Change one thing somewhere inside."""
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = choose.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and choose.random() < 0.7:
            node = inner
            continue
        match choose.randrange(6):
            case 0:
                del node[key]
            case 1:
                other = choose.choice(keys)
                node[key], node[other] = node[other], node[key]
            case 2 if type(inner) is int:
                node[key] = inner + choose.choice([-1, 1, 64, -64, 1 << 32])
            case 3 if isinstance(node, list):
                node.insert(key, deepcopy(inner))
            case 4 if isinstance(inner, list | dict):
                inner.clear()
            case 5 if isinstance(inner, int):
                node[key] = choose.choice([0, 1, 2, 8, 63, 65, 1000])
            case _:
                node[key] = deepcopy(choose.choice(ODD))
        return


# ---- judging ----


def sample(signature: Signature, seed: int) -> list[Array]:
    """Inputs for a model; dynamic dimensions are 3."""
    generator = np.random.default_rng(seed)
    arrays = []
    for port in signature.inputs:
        sizes = port.shape.numbers(dict.fromkeys(port.shape.symbols, 3))
        arrays.append(generator.integers(0, 2, sizes).astype(port.shape.dtype.numpy))
    return arrays


def judge(data: bytes, attack: bytes, inputs: list[Array], wanted: list[bytes], forged: bool) -> str:
    """What became of an attack. Everything but our own errors goes on to the caller, who takes it for a mistake."""
    try:
        executable = deserialize(attack, recompile)
    except SmeltError:
        return "refused"
    try:
        results = [np.asarray(array).tobytes() for array in executable(*(each.copy() for each in inputs))]
        if forged and _small(executable.signature):
            executable(*sample(executable.signature, 1))
    except SmeltError:
        return "refused by a call"
    finally:
        executable.close()
    if results != wanted:
        return "other results"
    return "same bytes" if attack == data else "harmless"


def _small(signature: Signature) -> bool:
    shapes = [port.shape for port in signature.inputs]
    return all(math.prod(shape.numbers(dict.fromkeys(shape.symbols, 3))) < 1 << 20 for shape in shapes)


def attack(path: Path, kind: str, seed: int, first: int, last: int, now: Any) -> Counter[str]:
    """What became of a number of attacks. The numbers are seeds: an attack can be repeated alone."""
    data = path.read_bytes()
    whole: Executable = deserialize(data, recompile)
    inputs = sample(whole.signature, seed)
    wanted = [np.asarray(array).tobytes() for array in whole(*(each.copy() for each in inputs))]
    make: Callable[[bytes, Random], bytes] = damage if kind == "damage" else forge
    seen: Counter[str] = Counter()
    for number in range(first, last):
        now.value = number
        try:
            made = make(data, Random(f"{seed}-{number}"))
            seen[judge(data, made, inputs, wanted, kind == "forge")] += 1
        except Exception:
            traceback.print_exc()
            print(f"attack {kind} {number} with seed {seed} raised something that is not ours", file=sys.stderr)
            seen["foreign"] += 1
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


def _work(path: Path, kind: str, seed: int, first: int, last: int, now: Any, answers: Any) -> None:
    os.environ.setdefault("SMELT_THREADS", "1")
    logging.disable()  # each bundle without code for this machine is worth a line, and here there are many
    answers.put(attack(path, kind, seed, first, last, now))


def fuzz(path: Path, kind: str, seed: int, count: int) -> Counter[str]:
    """Attacks in workers, one after the other; an attack that ends its worker is counted as crashed."""
    context = multiprocessing.get_context("spawn")
    seen: Counter[str] = Counter()
    first = 0
    while first < count:
        answers, now = context.SimpleQueue(), context.Value("q", first)
        last = min(first + EACH, count)
        worker = context.Process(target=_work, args=(path, kind, seed, first, last, now, answers))
        worker.start()
        worker.join()
        if worker.exitcode == 0:
            seen += answers.get()
            first = last
        else:
            print(f"attack {kind} {now.value} with seed {seed} ended a worker: {worker.exitcode}", file=sys.stderr)
            seen["crashed"] += 1
            seen["lost"] += now.value - first  # their verdicts went with the worker
            first = now.value + 1
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
    bad = ("crashed", "foreign")
    raise SystemExit(any(seen[what] for seen in found.values() for what in bad) or found["damage"]["other results"] > 0)


if __name__ == "__main__":
    main()
