"""The static site: it builds, its links lead somewhere, and the tables in docs/ are what the code says."""

from __future__ import annotations

import importlib.util
import inspect
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import smelt

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {str(named["id"])} if "id" in named else set()
        self.targets += [str(named["href"])] if tag == "a" and named.get("href") else []
        self.pictures += [str(named["src"])] if tag == "img" else []


def test_every_link_of_the_site_leads_to_a_page_or_a_file(site: ModuleType, tmp_path: Path) -> None:
    assert site.build(tmp_path) == len(list(tmp_path.rglob("*.html"))) - 1  # index.html is a redirection
    pages: dict[Path, Links] = {}
    for path in tmp_path.rglob("*.html"):
        pages[path.resolve()] = found = Links()
        found.feed(path.read_text("utf-8"))
    assert any(found.pictures for found in pages.values())
    for path, found in pages.items():
        assert all((path.parent / name).exists() for name in found.pictures), path
        for target in found.targets:
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            place = (path.parent / name).resolve() if name else path
            if place in pages:
                assert not anchor or anchor in pages[place].anchors, f"{path.name}: {target}"
            else:
                assert (ROOT / place.relative_to(tmp_path.resolve())).exists(), f"{path.name}: {target}"


def test_the_navigation_names_every_page_in_order(site: ModuleType) -> None:
    pages = site.sources()
    sections = site.navigation(pages)
    assert sorted(name for names in sections.values() for name in names) == sorted(pages)
    assert "More" not in sections, "a page that no section of docs/site.py names"
    assert site.navigation({**pages, "docs/new": ""})["More"] == ["docs/new"]


def test_a_broken_link_is_found(site: ModuleType) -> None:
    pages = {"docs/a": "# A\n[b](b.md#nowhere) [c](absent.md) [ok](b.md#b-c) [self](#a)", "docs/b": "# B c\n"}
    assert site.broken_links(pages) == ["docs/a: b.md#nowhere (no such heading)", "docs/a: absent.md"]


def test_the_reference_has_every_public_name(site: ModuleType) -> None:
    text = site.api()
    missing = [name for name in smelt.__all__ if not name.startswith("__") and f"## smelt.{name}\n" not in text]
    assert not missing
    values = {name: getattr(smelt, name) for name in smelt.__all__ if not name.startswith("__")}
    assert not [name for name, value in values.items() if not inspect.getdoc(value)]


@pytest.mark.parametrize("name", ["onnx_operators.md", "environment.md"])
def test_a_table_is_what_the_code_says(site: ModuleType, name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == site.TABLES[name](), "python docs/site.py --tables"


def test_every_environment_variable_is_in_the_table(site: ModuleType) -> None:
    used: set[str] = set()
    for path in (ROOT / "smelt").rglob("*.py"):
        used |= set(re.findall(r"\"(SMELT_[A-Z_]+)\"", path.read_text("utf-8")))
    assert used == set(site.ENVIRONMENT)
