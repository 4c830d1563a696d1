"""The tuning database: JSON lines in the cache folder, shared by processes.

`engine.compile` reads it through `lookup`; `engine.tune` appends. A line is a kernel shape key on a machine: the
schedule to use, the ratio of its time to the default's, and every schedule that was tried. Lines of one key are merged.
`SMELT_TUNING=off` uses the default schedules.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.device import cache as kept
from smelt.device.registry import device_of
from smelt.errors import FileError
from smelt.files import read_bytes, write_atomically
from smelt.frozen import Frozen
from smelt.kernel.tune.schedules import (
    KernelKey,
    Lookup,
    Schedule,
    default_schedule,
    no_schedule,
    schedule_of,
    schedule_record,
)
from smelt.target import Target, TileShape, tile_shape

NAME = "tuned.jsonl"
VERSION = 3
LARGEST = 1 << 20  # bytes of a line
log = logging.getLogger("smelt")


class Machine(Frozen):
    """What measurements depend on besides the key: the device, its model, its register tile, the number of threads."""

    device: str  # "cpu"
    model: str
    tile: TileShape
    threads: int

    def __str__(self) -> str:
        tile = self.tile
        return f"{self.device}: {self.model}, tile {tile.rows}x{tile.columns}x{tile.lanes}, threads {self.threads}"

    @staticmethod
    def parse(text: str) -> Machine:
        """Raises ValueError for a text that is no machine."""
        named, tile, threads = text.rsplit(", ", 2)
        device, colon, model = named.partition(": ")
        if not colon:
            raise ValueError("no device")
        rows, columns, lanes = map(int, tile.removeprefix("tile ").split("x"))
        return Machine(device, model, TileShape(rows, columns, lanes), int(threads.removeprefix("threads ")))


class Record(Frozen):
    """`schedule` is the one to use; `ratio`: its time over the default's. `tried`: all ratios that were measured."""

    machine: Machine
    key: KernelKey
    schedule: Schedule
    ratio: float
    tried: Mapping[Schedule, float]

    def merge_with(self, other: Record) -> Record:
        """The union of both; the schedule of the one that tried more, in any order."""
        ours, theirs = ((len(each.tried), -each.ratio, str(each.schedule)) for each in (self, other))
        better, worse = (self, other) if ours >= theirs else (other, self)
        return better.replace(tried=MappingProxyType({**worse.tried, **better.tried}))

    def line(self) -> str:
        tried = [[schedule_record(schedule), round(ratio, 5)] for schedule, ratio in self.tried.items()]
        found = {
            "version": VERSION,
            "machine": str(self.machine),
            "key": str(self.key),
            "schedule": schedule_record(self.schedule),
            "ratio": round(self.ratio, 5),
            "tried": tried,
        }
        return json.dumps(found, separators=(",", ":"))


Records: TypeAlias = Mapping[tuple[Machine, KernelKey], Record]


class Database(Frozen):
    """A file of lines. Damaged lines are skipped with a warning; lines are appended whole."""

    path: Path

    def read(self) -> Records:
        try:
            facts = self.path.stat()
        except OSError:  # nothing was tuned yet
            return {}
        return _read(self.path, facts.st_mtime_ns, facts.st_size)

    def append(self, records: Iterable[Record]) -> None:
        """Append lines, all of them or none; other processes may append at the same time."""
        text = "".join(f"{each.line()}\n" for each in records)
        if not text:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _lock(self.path) as handle:
                _write_all(handle, text.encode())
        except OSError as error:
            raise FileError(
                f"cannot write the tuning database {self.path}",
                got=error.strerror or error,
                remedy="SMELT_CACHE_DIR names another folder",
            ) from error

    def export(self, path: Path) -> int:
        """Write everything to another file, one line per key; returns the number of lines."""
        lines = [f"{each.line()}\n".encode() for each in self.read().values()]
        write_atomically(path, lines)
        return len(lines)

    def merge(self, path: Path) -> int:
        """Add the records of another file that add something; returns their number."""
        theirs = _parse(path)
        ours = self.read()
        fresh = [each for key, each in theirs.items() if key not in ours or _adds(each, ours[key])]
        self.append(fresh)
        return len(fresh)


def database() -> Database:
    """The database in the cache folder."""
    return Database(kept.default().folder / NAME)


def lookup(target: Target) -> Lookup:
    """The tuned schedules for the device of a target, its register tile and the default number of threads."""
    if os.environ.get("SMELT_TUNING", "on") == "off":
        return no_schedule
    records = database().read()
    if not records:
        return no_schedule
    machine = here(target)

    def find_schedule(key: KernelKey) -> Schedule | None:
        found = records.get((machine, key))
        return None if found is None else found.schedule

    return find_schedule


def here(target: Target) -> Machine:
    """The machine that a target's code is measured on."""
    device = device_of(target)
    return Machine(device.kind, device.model, tile_shape(target), device.default_threads)


# ---- lines ----


def _adds(new: Record, old: Record) -> bool:
    both = old.merge_with(new)
    return both.schedule != old.schedule or both.tried.keys() != old.tried.keys()


@lru_cache(4)
def _read(path: Path, modified: int, size: int) -> Records:
    """The file at that time; modification time and size are the cache key."""
    try:
        return _parse(path)
    except FileError as error:
        log.warning("the tuning database is not used: %s (%s)", error.message, error.got)
        return {}


def _parse(path: Path) -> Records:
    found: dict[tuple[Machine, KernelKey], Record] = {}
    damaged = 0
    for line in read_bytes(path).split(b"\n"):
        if not line.strip():
            continue
        try:
            record = _record_of(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += 1
            continue
        if record is not None:
            key = (record.machine, record.key)
            found[key] = found[key].merge_with(record) if key in found else record
    if damaged:
        log.warning("%s: %d damaged line%s skipped", path, damaged, "" if damaged == 1 else "s")
    return MappingProxyType(found)


def _record_of(line: bytes) -> Record | None:
    """The record of a line; None for another version. Raises for a damaged line."""
    if len(line) > LARGEST:
        raise ValueError("too long")
    data: dict[str, Any] = json.loads(line)
    if data["version"] == 2:  # of the processor, the only device there was
        data |= {"version": VERSION, "machine": f"cpu: {data['target']}"}
    if data["version"] != VERSION:
        return None
    machine, key = Machine.parse(data["machine"]), KernelKey.parse(data["key"])
    if key is None:
        return None
    schedule = schedule_of(key, data["schedule"], machine.tile)
    tried = {schedule_of(key, each, machine.tile): _ratio(ratio) for each, ratio in data["tried"]}
    legal = {each: ratio for each, ratio in tried.items() if each is not None}
    ratio = _ratio(data["ratio"])
    if schedule is None:
        schedule, ratio = default_schedule(key), 1.0
    return Record(machine, key, schedule, ratio, MappingProxyType(legal))


def _ratio(value: Any) -> float:
    ratio = float(value)
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError("no ratio")
    return ratio


@contextmanager
def _lock(path: Path) -> Iterator[int]:
    """A locked file to append to, at the beginning of a line even if a killed process left half of one."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        except (ImportError, OSError):
            pass  # no locks here: one write of all lines is the best that is possible
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            _write_all(handle, b"\n")
        yield handle
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
