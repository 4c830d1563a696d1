"""The README's picture: drawn from the data that is kept beside it, and the data is what docs/performance.md says."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DATA: dict[str, Any] = json.loads((ROOT / "docs" / "pictures" / "latency.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture", ROOT / "bench" / "picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_drawn_from_the_data(picture: ModuleType):
    kept = (ROOT / "docs" / "pictures" / "latency.svg").read_text("utf-8")
    assert kept == picture.draw(DATA), "python bench/picture.py"
    bars = [each for each in ElementTree.fromstring(kept).iter() if each.tag.endswith("rect")]
    assert len(bars) == len(picture.NAMES) * (len(DATA["models"]) + 1)  # with the legend


def test_the_data_is_what_the_page_on_performance_says():
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    for name, engines in DATA["models"].items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        shown = [float(number) for number in re.findall(r"\| ([\d.]+) \(", row)]
        assert shown == [engines[engine]["median_ms"] for engine in ("smelt", "onnxruntime", "openvino")]
    assert DATA["date"] in page
    assert {"date", "machine", "versions", "command", "settings", "noise"} <= DATA.keys()
