"""MaxRoiPool and RoiAlign against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.errors import ShapeError
from tests.unit.read.peer import node_model, ours, same, theirs


@pytest.mark.parametrize("pooled", [(1, 1), (2, 3), (7, 4)])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("open_axes", [False, True])
def test_max_roi_pool(tmp_path: Path, seed: int, pooled: tuple[int, int], scale: float, open_axes: bool) -> None:
    """Regions inside, across the border and upside down."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 3, 9, 11)).astype(np.float32)
    rois = np.concatenate([random.integers(2, size=(12, 1)), random.integers(-3, 24, (12, 4))], 1).astype(np.float32)
    attributes = {"pooled_shape": pooled, "spatial_scale": scale}
    symbolic = [(2, 3), (0,)] if open_axes else []
    model = node_model("MaxRoiPool", [x, rois], [1], attributes, symbolic=symbolic)
    for images, regions in ((x, rois), (x[:, :, :7, :6], rois[:1])):
        if images.shape != x.shape and not open_axes:
            continue
        given = {"x0": images, "x1": regions}
        same(ours(model, given, tmp_path)[0], theirs(model, given))


def test_regions_that_are_none(tmp_path: Path) -> None:
    x, rois = np.zeros((1, 1, 4, 4), np.float32), np.zeros((2, 5), np.float32)
    for images, regions, pooled in ((x[0], rois, (1, 1)), (x, rois[:, :4], (1, 1)), (x, rois, (0, 1)), (x, rois, (1,))):
        model = node_model("MaxRoiPool", [images, regions], [1], {"pooled_shape": pooled})
        with pytest.raises(ShapeError):
            ours(model, {"x0": images, "x1": regions}, tmp_path)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_in_a_narrow_type(tmp_path: Path, seed: int, mode: str) -> None:
    """The results are those in f32, rounded once."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 3, 40, 60)).astype(np.float16)
    rois = random.uniform(0, 50, (5, 4)).astype(np.float16)
    batch = random.integers(2, size=5)
    attributes = {"output_height": 4, "output_width": 3, "sampling_ratio": 2, "mode": mode}
    narrow, wide = ({"x0": x.astype(t), "x1": rois.astype(t), "x2": batch} for t in (np.float16, np.float32))
    models = [node_model("RoiAlign", list(given.values()), [1], attributes) for given in (narrow, wide)]
    expected = theirs(models[1], wide)[0].astype(np.float16)
    np.testing.assert_allclose(ours(models[0], narrow, tmp_path)[0][0], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align_with_samples_for_every_pixel(tmp_path: Path, seed: int, mode: str, transform: str) -> None:
    """Boxes that come at run time, any number of them, also none; flat, far outside and upside down."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, 3, 9, 11)).astype(np.float32)
    corners = random.uniform(-5, 20, (300, 2))
    odd = [-3.0, -4.0] if transform == "output_half_pixel" else [0.0, 4.0]  # onnxruntime hangs at upside down pixels
    extents = np.concatenate([random.uniform(0, 30, (290, 2)), [odd] * 10])
    rois = np.concatenate([corners, corners + extents], 1).astype(np.float32)
    batch = random.integers(2, size=300)
    attributes = {"output_height": 4, "output_width": 3, "mode": mode, "coordinate_transformation_mode": transform}
    model = node_model("RoiAlign", [x, rois, batch], [1], attributes, symbolic=[(2, 3), (0,), (0,)])
    for count in (300, 1, 0):
        given: dict[str, Array] = {"x0": x, "x1": rois[:count], "x2": batch[:count]}
        have, want = ours(model, given, tmp_path)[0][0], theirs(model, given)[0]
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("samples", [0, 2])
def test_roi_align_copies_no_images(tmp_path: Path, samples: int) -> None:
    """Boxes share the image that they are cut from: 4,000 copies of it would take 4 GB."""
    x = np.zeros((1, 16, 128, 128), np.float32)
    rois, batch = np.zeros((4000, 4), np.float32), np.zeros(4000, np.int64)
    model = node_model("RoiAlign", [x, rois, batch], [1], {"sampling_ratio": samples}, symbolic=[(), (0,), (0,)])
    (tmp_path / "roi.onnx").write_bytes(model.SerializeToString())
    loaded = smelt.load(tmp_path / "roi.onnx", engine="native", memory_limit="256MB")
    assert loaded(x, rois, batch)["y0"].shape == (4000, 16, 1, 1)
