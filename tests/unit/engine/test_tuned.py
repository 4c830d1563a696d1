"""The database of what was measured: lines that appear whole, add up, travel, and never do harm when damaged."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from smelt.device import cpu
from smelt.engine import tuned
from smelt.engine.tuned import Database, Machine, Record
from smelt.errors import FileError
from smelt.kernel.tune.schedules import KernelKey, Schedule, default_schedule, legal_schedules
from smelt.target import TileShape

TILE = TileShape(6, 64, 16)
MACHINE = Machine("cpu", "Some Processor: 3 GHz, 2 dies", TILE, 2)
TARGET = cpu.target("avx512")


def key(rows: int = 512) -> KernelKey:
    return KernelKey.of("gemm", groups=1, rows=rows, depth=512, panels=8, width=64)


def record(rows: int = 512, best: int = 3, tried: int = 5, ratio: float = 0.9) -> Record:
    asked = key(rows)
    schedules = legal_schedules(asked, TILE)
    ratios: dict[Schedule, float] = {each: 1.0 + i / 100 for i, each in enumerate(schedules[1 : 1 + tried])}
    ratios[schedules[best]] = ratio
    return Record(MACHINE, asked, schedules[best], ratio, MappingProxyType(ratios))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "cache" / "tuned.jsonl")


def test_what_is_appended_is_read(database: Database) -> None:
    assert database.read() == {}
    written = [record(512), record(1000)]
    database.append(written[:1])
    assert list(database.read().values()) == written[:1]
    database.append(written[1:])
    assert list(database.read().values()) == written
    database.append([])
    assert len(database.path.read_text().splitlines()) == 2


def test_lines_of_one_key_merge_in_any_order(tmp_path: Path) -> None:
    few, more = record(best=2, tried=3, ratio=0.5), record(best=6, tried=9, ratio=0.8)
    found = []
    for i, order in enumerate(([few, more], [more, few])):
        database = Database(tmp_path / f"{i}.jsonl")
        database.append(order)
        found.append(next(iter(database.read().values())))
    assert found[0] == found[1]
    assert found[0].schedule == more.schedule  # the one that tried more wins
    assert found[0].tried.keys() == few.tried.keys() | more.tried.keys()


def test_damaged_lines_are_passed_over_with_a_warning(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.append([record(512), record(1000)])
    good = database.path.read_text().splitlines()
    data = json.loads(good[0])
    bad = [
        good[0][:40],
        "null",
        "[1]",
        '"text"',
        "{}",
        "[" * 5000,
        json.dumps({**data, "ratio": "fast"}),
        json.dumps({**data, "ratio": float("nan")}),
        json.dumps({**data, "ratio": -1}),
        json.dumps({**data, "tried": [1]}),
        json.dumps({**data, "schedule": None}),
        json.dumps({**data, "machine": "nowhere"}),
        json.dumps({**data, "key": 5}),
        "\x00\x00",
    ]
    database.path.write_text("\n".join([*bad, *good, ""]))
    database.path.write_bytes(database.path.read_bytes() + b"\xff\xfe\n")
    with caplog.at_level(logging.WARNING, "smelt"):
        assert list(database.read().values()) == [record(512), record(1000)]
    assert f"{len(bad) + 1} damaged lines" in caplog.text


def test_lines_of_another_time_are_passed_over_silently(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.append([record()])
    data = json.loads(database.path.read_text())
    others = [{**data, "version": 0}, {**data, "key": data["key"].replace("/3", "/0")}]
    database.path.write_text("".join(f"{json.dumps(each)}\n" for each in others))
    assert database.read() == {}
    assert not caplog.text


def test_an_illegal_schedule_is_not_used(database: Database) -> None:
    """A line from a hand or from another version cannot select an impossible schedule."""
    database.append([record()])
    data = json.loads(database.path.read_text())
    data["schedule"] = {"row_block": 10**9, "call_rows": 12, "panels_outer": False}
    database.path.write_text(json.dumps(data) + "\n")
    (found,) = database.read().values()
    assert found.schedule == default_schedule(found.key)


def test_half_a_line_of_a_killed_process_spoils_no_other(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.append([record(512)])
    with database.path.open("a") as file:
        file.write(record(700).line()[:100])
    database.append([record(1000)])
    assert list(database.read().values()) == [record(512), record(1000)]
    assert "1 damaged line " in caplog.text


WRITER = """
import sys
from pathlib import Path
from tests.unit.engine.test_tuned import record
from smelt.engine.tuned import Database
database = Database(Path(sys.argv[1]))
for i in range(40):
    database.append([record(int(sys.argv[2]) + i), record(int(sys.argv[2]) + 100 + i)])
"""


def test_two_processes_write_at_once(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    root = Path(__file__).parents[3]
    starts = (1000, 5000)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(database.path), str(start)], cwd=root) for start in starts
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    want = {key(start + more + i) for start in starts for more in (0, 100) for i in range(40)}
    assert {asked for _, asked in database.read()} == want
    assert not caplog.text


def test_export_and_merge(database: Database, tmp_path: Path) -> None:
    database.append([record(512), record(512, best=6, tried=9), record(1000)])
    exported = tmp_path / "all.jsonl"
    assert database.export(exported) == 2
    assert len(exported.read_text().splitlines()) == 2
    other = Database(tmp_path / "other.jsonl")
    other.append([record(700)])
    assert other.merge(exported) == 2
    assert other.read() == {**database.read(), (MACHINE, key(700)): record(700)}
    assert other.merge(exported) == 0
    with pytest.raises(FileError, match="cannot read"):
        other.merge(tmp_path / "absent")


def test_a_folder_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot write") as caught:
        Database(tmp_path / "file" / "tuned.jsonl").append([record()])
    assert "SMELT_CACHE_DIR" in str(caught.value)


def test_machines_come_back_from_their_texts() -> None:
    assert Machine.parse(str(MACHINE)) == MACHINE
    assert tuned.here(TARGET) == tuned.here(cpu.target("plain")).replace(tile=TILE)
    for text in ("", "cpu: x, tile 1x2, threads 1", "cpu: x, tile 1x2x3, threads", "x, tile 1x2x3, threads 1"):
        with pytest.raises(ValueError, match=r"unpack|invalid literal|no device"):
            Machine.parse(text)


def test_measurements_of_before_are_those_of_the_processor(database: Database) -> None:
    """Lines of version 2 name no device: there was one."""
    kept, other = record(512), record(1000)
    data = json.loads(kept.line())
    data |= {"version": 2, "target": data.pop("machine").removeprefix("cpu: ")}
    database.append([other.replace(machine=MACHINE.replace(device="cuda"))])
    with database.path.open("a") as file:
        file.write(json.dumps(data) + "\n")
    found = database.read()
    assert found[MACHINE, kept.key] == kept
    assert (MACHINE, other.key) not in found, "another device"


def test_the_compiler_looks_up_what_this_machine_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    asked = key()
    assert tuned.lookup(TARGET)(asked) is None
    mine = record().replace(machine=tuned.here(TARGET))
    tuned.database().append([mine, record(1000)])
    assert tuned.lookup(TARGET)(asked) == mine.schedule != default_schedule(asked)
    assert tuned.lookup(TARGET)(key(1000)) is None  # measured elsewhere
    assert tuned.lookup(cpu.target("avx2"))(asked) is None
    monkeypatch.setenv("SMELT_THREADS", "7")
    assert tuned.lookup(TARGET)(asked) is None
    monkeypatch.delenv("SMELT_THREADS")
    monkeypatch.setenv("SMELT_TUNING", "off")
    assert tuned.lookup(TARGET)(asked) is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not read everything")
def test_a_file_that_cannot_be_read_is_passed_over(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.append([record()])
    database.path.chmod(0)
    assert database.read() == {}
    assert "cannot be read" in caplog.text
