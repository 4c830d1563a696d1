"""Code written for onnxruntime runs on smelt.compat: every probe is run against both, and the answers are compared."""

from __future__ import annotations

import ctypes
import json
import logging
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt.compat
from smelt.device.runtime import runtime
from smelt.errors import DeviceError, RunError, SmeltError, UnsupportedError

ort = pytest.importorskip("onnxruntime")
DIGITS = str(files("smelt") / "assets" / "digits.onnx")
CPU = ["CPUExecutionProvider"]
PIXELS = np.random.default_rng(5).random((3, 64), np.float32)


def session(module: ModuleType, **options: Any) -> Any:
    return module.InferenceSession(DIGITS, **{"providers": CPU, **options})


# ---- probes: what each gives must be the same ----


def describe(m: ModuleType) -> Any:
    it = session(m)
    ports = [(each.name, each.type, list(each.shape)) for each in (*it.get_inputs(), *it.get_outputs())]
    meta = it.get_modelmeta()
    fields = ("graph_name", "producer_name", "domain", "description", "version", "custom_metadata_map")
    return (
        ports,
        {name: getattr(meta, name) for name in fields},
        [each.name for each in it.get_overridable_initializers()],
    )


def run_by_name(m: ModuleType) -> Any:
    return session(m).run(["probabilities"], {"pixels": PIXELS})


def run_all(m: ModuleType) -> Any:
    return session(m).run(None, {"pixels": PIXELS}, m.RunOptions())


def from_bytes(m: ModuleType) -> Any:
    return m.InferenceSession(Path(DIGITS).read_bytes(), providers=CPU).run(None, {"pixels": PIXELS})


def with_options(m: ModuleType) -> Any:
    options = m.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = m.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.execution_mode = m.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "0")
    it = m.InferenceSession(DIGITS, options, CPU)
    assert it.get_session_options().get_session_config_entry("session.set_denormal_as_zero") == "0"
    return it.run(None, {"pixels": PIXELS})


def fixed_dimension(m: ModuleType) -> Any:
    options = m.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    it = m.InferenceSession(DIGITS, options, CPU)
    return list(it.get_inputs()[0].shape), it.run(None, {"pixels": PIXELS})


def providers(m: ModuleType) -> Any:
    it = session(m)
    return it.get_providers(), list(it.get_provider_options())


def provider_tuples(m: ModuleType) -> Any:
    return m.InferenceSession(DIGITS, providers=[("CPUExecutionProvider", {})]).run(None, {"pixels": PIXELS})


def asynchronous(m: ModuleType) -> Any:
    done = threading.Event()
    got: list[Any] = []

    def callback(outputs: Any, user_data: Any, error: str) -> None:
        got.extend([outputs, user_data, error])
        done.set()

    it = session(m)
    it.run_async(["probabilities"], {"pixels": PIXELS}, callback, {"id": 7})
    assert done.wait(60)
    return got


def ort_values(m: ModuleType) -> Any:
    value = m.OrtValue.ortvalue_from_numpy(PIXELS)
    (out,) = session(m).run_with_ort_values(["probabilities"], {"pixels": value})
    facts = (value.shape(), value.data_type(), value.element_type(), value.device_name(), value.is_tensor())
    held = (ctypes.c_float * PIXELS.size).from_address(value.data_ptr())
    return facts, value.has_value(), value.tensor_size_in_bytes(), out.numpy(), list(held)


def updated_value(m: ModuleType) -> Any:
    value = m.OrtValue.ortvalue_from_shape_and_type([3, 64], np.float32)
    value.update_inplace(PIXELS)
    (out,) = session(m).run_with_ort_values(None, {"pixels": value})
    return out.numpy()


def bound(m: ModuleType) -> Any:
    it = session(m)
    binding = it.io_binding()
    binding.bind_cpu_input("pixels", PIXELS)
    binding.bind_output("probabilities")
    it.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu(), [each.numpy() for each in binding.get_outputs()]


def bound_to_memory(m: ModuleType) -> Any:
    it = session(m)
    result = np.zeros((3, 10), np.float32)
    binding = it.io_binding()
    binding.bind_input("pixels", "cpu", 0, np.float32, PIXELS.shape, PIXELS.ctypes.data)
    binding.bind_output("probabilities", "cpu", 0, np.float32, result.shape, result.ctypes.data)
    it.run_with_iobinding(binding)
    return result


def bound_to_value(m: ModuleType) -> Any:
    it = session(m)
    result = m.OrtValue.ortvalue_from_shape_and_type([3, 10], np.float32)
    binding = it.io_binding()
    binding.bind_ortvalue_input("pixels", m.OrtValue.ortvalue_from_numpy(PIXELS))
    binding.bind_ortvalue_output("probabilities", result)
    it.run_with_iobinding(binding)
    return result.numpy()


PROBES: list[Callable[[ModuleType], Any]] = [
    *(describe, run_by_name, run_all, from_bytes, with_options, fixed_dimension, providers, provider_tuples),
    *(asynchronous, ort_values, updated_value, bound, bound_to_memory, bound_to_value),
]


def agree(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-7)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            agree(a, b)
    else:
        assert ours == theirs


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_a_probe_gives_what_onnxruntime_gives(probe: Callable[[ModuleType], Any]) -> None:
    agree(probe(smelt.compat), probe(ort))


# ---- mistakes: both raise ----

MISTAKES: list[Callable[[ModuleType], Any]] = [
    lambda m: session(m).run(["logits"], {"pixels": PIXELS}),
    lambda m: session(m).run(None, {}),
    lambda m: session(m).run(None, {"pixels": PIXELS[:, :60]}),
    lambda m: session(m).run(None, {"pixels": PIXELS.astype(np.float64)}),
    lambda m: session(m).io_binding().bind_cpu_input("image", PIXELS),
    lambda m: m.InferenceSession(DIGITS, providers="CPUExecutionProvider"),
    lambda m: m.InferenceSession("absent.onnx", providers=CPU),
    lambda m: m.InferenceSession(b"no model", providers=CPU),
    lambda m: setattr(m.SessionOptions(), "intra_op_threads", 2),
    lambda m: m.SessionOptions().get_session_config_entry("absent"),
    lambda m: m.OrtValue.ortvalue_from_numpy(PIXELS).update_inplace(PIXELS[:1]),
]


REFUSALS = (SmeltError, ValueError, RuntimeError, AttributeError)


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_refused_by_both(number: int) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  onnxruntime's errors have no base of their own
        MISTAKES[number](ort)
    with pytest.raises(REFUSALS):
        MISTAKES[number](smelt.compat)


# ---- what onnxruntime does otherwise, or only with a GPU ----


def test_a_gpu_session_never_runs_on_the_cpu_unasked(caplog: pytest.LogCaptureFixture) -> None:
    if "CUDAExecutionProvider" in smelt.compat.get_available_providers():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match="none of the execution providers is available") as refused:
        smelt.compat.InferenceSession(DIGITS, providers=["CUDAExecutionProvider"])
    assert "add CPUExecutionProvider" in str(refused.value)
    with caplog.at_level(logging.WARNING, "smelt"):
        both = smelt.compat.InferenceSession(DIGITS, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert both.get_providers() == CPU
    assert "CUDAExecutionProvider" in caplog.text
    assert smelt.compat.get_device() == "CPU"


def test_a_profile_names_the_kernels_of_every_run(tmp_path: Path) -> None:
    options = smelt.compat.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile_")
    before = time.perf_counter_ns()
    it = smelt.compat.InferenceSession(DIGITS, options, CPU)
    plain = session(smelt.compat).run(None, {"pixels": PIXELS})
    for _ in range(2):
        np.testing.assert_array_equal(it.run(None, {"pixels": PIXELS})[0], plain[0])
    assert before <= it.get_profiling_start_time_ns() <= time.perf_counter_ns()
    events = json.loads(Path(it.end_profiling()).read_text())
    names = [event["name"] for event in events if event["cat"] == "Session"]
    assert names == ["model_loading_uri", "model_run", "model_run"]
    runs = [event for event in events if event["name"] == "model_run"]
    kernels = [event for event in events if event["cat"] == "Node"]
    assert kernels
    for kernel in kernels:  # each is within one of the runs
        assert any(run["ts"] <= kernel["ts"] and kernel["dur"] <= run["dur"] for run in runs)
    plain = session(smelt.compat)
    assert (plain.end_profiling(), plain.get_profiling_start_time_ns()) == ("", 0)


def test_probabilities_with_keys_are_dictionaries() -> None:
    """ZipMap at the end of a classifier: a list of one dictionary a row."""
    weights = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("ZipMap", ["p"], ["out"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    graph = helper.make_graph(
        nodes,
        "zip",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_value_info("out", kind)],
        [weights],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    x = np.random.default_rng(1).random((2, 4), np.float32)
    ours, theirs = (m.InferenceSession(data, providers=CPU) for m in (smelt.compat, ort))
    assert ours.get_outputs()[0].type == theirs.get_outputs()[0].type
    for mine, other in zip(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0], strict=True):
        assert mine == pytest.approx(other, rel=1e-6)


def test_what_onnxruntime_lets_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="Unknown Provider Type: AbacusExecutionProvider"):
        smelt.compat.InferenceSession(DIGITS, providers=["AbacusExecutionProvider"])
    with pytest.raises(ValueError, match="same length"):
        smelt.compat.InferenceSession(DIGITS, providers=CPU, provider_options=[{}, {}])
    with pytest.raises(RunError, match="no such output"):
        session(smelt.compat).io_binding().bind_output("logits")


def test_what_cannot_be_done_is_refused() -> None:
    options = smelt.compat.SessionOptions()
    for wrong in (
        lambda: options.register_custom_ops_library("ops.so"),
        lambda: options.add_initializer("w", smelt.compat.OrtValue.ortvalue_from_numpy(PIXELS)),
        lambda: options.add_free_dimension_override_by_denotation("DATA_BATCH", 1),
        lambda: smelt.compat.set_seed(1),
    ):
        with pytest.raises(UnsupportedError):
            wrong()
    options.optimized_model_filepath = "out.onnx"
    with pytest.raises(UnsupportedError, match="optimised ONNX file"):
        smelt.compat.InferenceSession(DIGITS, options)
    named = smelt.compat.SessionOptions()
    named.add_free_dimension_override_by_name("bach", 2)
    with pytest.raises(RunError, match="no such dynamic dimension"):
        smelt.compat.InferenceSession(DIGITS, named)


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_of_threads_is_set_and_zero_leaves_it(count: int) -> None:
    before = runtime().threads
    try:
        for wanted in (count, 0):
            options = smelt.compat.SessionOptions()
            options.intra_op_num_threads = wanted
            smelt.compat.InferenceSession(DIGITS, options, CPU)
            assert runtime().threads == count
    finally:
        runtime().set_threads(before)


def test_the_callback_hears_of_an_error() -> None:
    heard: list[str] = []
    done = threading.Event()
    it = session(smelt.compat)

    def callback(outputs: Any, user_data: Any, error: str) -> None:
        heard.append(error)
        done.set()

    it.run_async(None, {"pixels": PIXELS[:, :2]}, callback, None)
    assert done.wait(60)
    assert "64" in heard[0]


def test_memory_at_an_address_is_read_in_place() -> None:
    it = session(smelt.compat)
    block = (ctypes.c_float * (3 * 64))(*PIXELS.reshape(-1))
    binding = it.io_binding()
    binding.bind_input("pixels", "cpu", 0, 1, (3, 64), ctypes.addressof(block))  # 1: FLOAT in the ONNX standard
    binding.bind_output("probabilities")
    it.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], it.run(None, {"pixels": PIXELS})[0])
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []


def endless() -> bytes:
    """A loop whose trip count is an input, with enough work that both runtimes look at the flag in between."""
    state = helper.make_tensor_value_info("s", TensorProto.FLOAT, [64, 64])
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "s"], ["m"]),
            helper.make_node("Tanh", ["m"], ["t"]),
            helper.make_node("Identity", ["c"], ["again"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            state,
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, [64, 64]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "endless",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 64])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("module", [ort, smelt.compat], ids=["onnxruntime", "smelt"])
def test_terminate_ends_the_running_call_and_later_ones_until_reset(module: ModuleType) -> None:
    it = module.InferenceSession(endless(), providers=CPU)
    feed = {"n": np.array(1), "x": np.full((64, 64), 0.01, np.float32)}
    (expected,) = it.run(None, feed)
    options, other = module.RunOptions(), module.RunOptions()
    assert not options.terminate
    timer = threading.Timer(0.2, setattr, (options, "terminate", True))
    timer.start()
    with pytest.raises(Exception, match=r"terminate|cancelled"):
        it.run(None, {**feed, "n": np.array(1 << 40)}, options)
    timer.join()
    assert options.terminate
    with pytest.raises(Exception, match=r"terminate|cancelled"):
        it.run(None, feed, options)
    assert np.array_equal(it.run(None, feed, other)[0], expected)
    options.terminate = False
    assert np.array_equal(it.run(None, feed, options)[0], expected)
