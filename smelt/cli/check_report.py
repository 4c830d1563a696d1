"""The report of `smelt check` on Python files: text, JSON, and GitHub annotations.

`docs/tensors.md` describes the JSON. A mistake that several entry points share is shown once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.cli.check_entries import Entry, Found, Uncovered, deduplicate, find_uncovered
from smelt.cli.check_modules import CrashError, ImportFailedError
from smelt.errors import Location, SmeltError

VERSION = 1  # of the JSON


@dataclass(slots=True)
class Report:
    """All findings: each mistake with its first entry point."""

    files: list[str] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    mistakes: list[tuple[str, SmeltError]] = field(default_factory=list)
    strict: bool = False

    def add(self, file: Path, found: Found) -> None:
        self.files.append(str(file))
        self.found.append(found)
        every = [(each.name, error) for each in found.entries for error in each.mistakes]
        if found.failure is not None:
            every.insert(0, ("", found.failure))
        kept = deduplicate(error for _, error in (*self.mistakes, *every))
        self.mistakes = [(name, error) for name, error in (*self.mistakes, *every) if any(error is k for k in kept)]

    @property
    def uncovered(self) -> list[Uncovered]:
        return find_uncovered(self.found)

    @property
    def limited(self) -> list[Entry]:
        """Entry points without mistakes that were checked only for samples or under unchecked assumptions."""
        return [each for found in self.found for each in found.entries if each.limits and not each.mistakes]

    @property
    def entries(self) -> int:
        return sum(len(found.entries) for found in self.found)

    @property
    def ok(self) -> bool:
        return not self.mistakes and not (self.strict and (self.uncovered or self.limited or not self.entries))


# ---- text ----


def text(report: Report) -> str:
    """For people: every mistake, what was not covered, and a summary line."""
    blocks = [_add_level(error) for _, error in report.mistakes]
    word = "error" if report.strict else "note"
    blocks += [
        f"{each.path}:{each.line} {word}: {each.name} is not covered: {each.reason}" for each in report.uncovered
    ]
    blocks += [f"{each.path}:{each.line} {word}: {_describe_limits(each)}" for each in report.limited]
    return "\n".join([*(f"{block}\n" for block in blocks), summary(report)])


def _describe_limits(entry: Entry) -> str:
    return f"{entry.name} is not proven for everything: {'; '.join(entry.limits)}"


def _add_level(error: SmeltError) -> str:
    """`mlp.py:5:47 error: …` for the error's own `mlp.py:5:47: …`."""
    shown, start = str(error), f"{error.where}: "
    at = f"{error.where} " if shown.startswith(start) else ""
    return f"{at}error: {shown.removeprefix(start)}"


def summary(report: Report) -> str:
    entries = _count(report.entries, "entry point", "entry points")
    files = _count(len(report.files), "file", "files")
    if report.mistakes:
        return f"{_count(len(report.mistakes), 'mistake', 'mistakes')} in {entries} of {files}"
    more = f", {len(report.uncovered)} not covered" if report.uncovered else ""
    more += f", {len(report.limited)} not proven for everything" if report.limited else ""
    verdict = "every other shape is proven" if report.limited else "every shape is proven"
    if report.entries == len(report.limited):
        verdict = "no mistake was found" if report.entries else "nothing to check"
    return f"{entries} of {files}{more}: {verdict}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# ---- JSON ----


def record(report: Report) -> dict[str, Any]:
    """For machines."""
    return {
        "version": VERSION,
        "ok": report.ok,
        "files": report.files,
        "mistakes": [mistake_record(name, error) for name, error in report.mistakes],
        "entries": [
            {
                "name": each.name,
                "path": each.path,
                "line": each.line,
                "ways": each.ways,
                "numbers": each.numbers,
                "limits": each.limits,
                "mistakes": len(each.mistakes),
            }
            for found in report.found
            for each in found.entries
        ],
        "uncovered": [
            {"name": each.name, "path": each.path, "line": each.line, "reason": each.reason}
            for each in report.uncovered
        ],
    }


def mistake_record(entry: str, error: SmeltError) -> dict[str, Any]:
    """One mistake: the error's own record, where it is, and of which kind: `shape`, `import` or `exception`."""
    kinds = {ImportFailedError: "import", CrashError: "exception"}
    found = {"kind": kinds.get(type(error), "shape"), "entry": entry or None, **error.record()}
    if isinstance(error.where, Location):
        found |= {"path": error.where.path, "line": error.where.line, "column": error.where.column}
    if error.source:
        found["source"] = error.source
    return found


# ---- GitHub ----


def github(report: Report) -> str:
    """Annotations, which GitHub shows beside the lines of a pull request; the last line is for the log."""
    lines = [_annotation("error", error.where, "smelt check", _message_body(error)) for _, error in report.mistakes]
    for each in report.uncovered:
        where = Location(each.path, each.line)
        said = f"{each.name} is not covered: {each.reason}"
        lines.append(_annotation("error" if report.strict else "notice", where, "smelt check", said))
    for entry in report.limited:
        where = Location(entry.path, entry.line)
        lines.append(_annotation("error" if report.strict else "notice", where, "smelt check", _describe_limits(entry)))
    return "\n".join([*lines, summary(report)])


def _message_body(error: SmeltError) -> str:
    shown, start = str(error), f"{error.where}: "
    return shown.removeprefix(start)


def _annotation(level: str, where: object, title: str, message: str) -> str:
    fields: list[tuple[str, object]] = []
    if isinstance(where, Location):
        fields = [("file", _from_workspace(where.path))]
        fields += [(name, number) for name, number in (("line", where.line), ("col", where.column)) if number]
    fields.append(("title", title))
    return f"::{level} {','.join(f'{name}={_escape(value, True)}' for name, value in fields)}::{_escape(message)}"


def _from_workspace(path: str) -> str:
    """The path as GitHub knows it: from the root of the checkout, whichever folder the check runs in."""
    root = os.environ.get("GITHUB_WORKSPACE")
    full = os.path.abspath(path)
    return os.path.relpath(full, root) if root and full.startswith(os.path.abspath(root) + os.sep) else path


def _escape(value: object, in_field: bool = False) -> str:
    text = str(value).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if in_field else text


def format_report(report: Report, form: str) -> str:
    return github(report) if form == "github" else text(report)
