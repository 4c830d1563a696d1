"""InferenceSession and IOBinding with onnxruntime's methods, on a model that smelt loaded."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smelt.buffer import as_array
from smelt.compat.options import RunOptions, SessionOptions
from smelt.compat.profiling import Trace
from smelt.compat.providers import Options, choose, normalise
from smelt.compat.values import OrtValue, numpy_type, type_of_port
from smelt.device.registry import find_device
from smelt.dtype import Array
from smelt.engine_api import Port
from smelt.errors import RunError, UnsupportedError
from smelt.formats import spool
from smelt.ir.ops.signature import bare_symbol
from smelt.model import LoadedModel, load, model_of, read
from smelt.passes.specialise import substitute
from smelt.read.onnx.declared import describe
from smelt.stop import Stop

Callback = Callable[[list[Any], Any, str], None]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type as `tensor(float)`, and its sizes; a dynamic one is its name."""

    name: str
    type: str
    shape: list[int | str]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of a model file."""

    graph_name: str = ""
    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    producer_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0


class InferenceSession:
    """`onnxruntime.InferenceSession` on smelt. Besides ONNX files and their bytes it takes what `smelt.load` takes.

    `providers` chooses the device: CPUExecutionProvider (the default) or CUDAExecutionProvider; a list without the CPU
    is never run there. `engine` is smelt's own: auto, native, pjrt or reference.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Options]] | None = None,
        provider_options: Sequence[Options] | None = None,
        *,
        engine: str = "auto",
        **ignored: object,
    ) -> None:
        unknown = sorted(set(ignored) - {"disabled_optimizers", "enable_fallback"})
        if unknown:
            raise TypeError(f"InferenceSession takes no argument {unknown[0]!r}")
        self._options = sess_options or SessionOptions()
        if self._options.optimized_model_filepath:
            raise UnsupportedError(
                "smelt writes no optimised ONNX file", remedy='smelt.load(path).save("model.smelt"), a compiled one'
            )
        self._engine = engine
        if isinstance(path_or_bytes, bytes | bytearray | memoryview):
            folder, path = spool(path_or_bytes)
            weakref.finalize(self, folder.cleanup)
            self._path = Path(path)
        else:
            self._path = Path(path_or_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self.set_providers(providers, provider_options)

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Options]] | None = None,
        provider_options: Sequence[Options] | None = None,
    ) -> None:
        """Load the model again, for other providers."""
        self._wanted = normalise(providers, provider_options)
        self._provider, self._device = choose(self._wanted)
        if self._options.intra_op_num_threads > 0 and self._device == "cpu":
            find_device(self._device).set_threads(self._options.intra_op_num_threads)
        self._trace = Trace.begin(self._options.profile_file_prefix) if self._options.enable_profiling else None
        with self._span("model_loading_uri"):
            self._model = self._load()
        if self._trace is not None and self._model.engine == "native" and not self._model.shaped:
            self._trace.instrument(*read(self._path))

    def _load(self) -> LoadedModel:
        fixed = self._options._dimensions
        if not fixed:
            return load(self._path, device=self._device, engine=self._engine)
        program, weights = read(self._path)
        sizes = {size for port in program.main.args for size in getattr(port.type, "symbols", ())}
        unknown = sorted(set(fixed) - sizes)
        if unknown:
            known = ", ".join(sorted(sizes))
            remedy = "add_free_dimension_override_by_name with one of these"
            raise RunError("no such dynamic dimension", expected=known, got=", ".join(unknown), remedy=remedy)
        program = substitute(program, fixed)
        return model_of(program, weights, device=self._device, engine=self._engine, name=self._path.stem)

    # -- running --

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs of these names, in order; all of them for None."""
        names = self._names(output_names)
        outputs = self._call(input_feed, run_options)
        ports = {port.name: port for port in self._model.signature.outputs}
        return [_as_onnx(ports[name], outputs[name]) for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in another thread, then call `callback(outputs, user_data, error)`; `error` is empty on success."""
        names = self._names(output_names)

        def work() -> None:
            outputs: list[Any] = []
            error = ""
            try:
                outputs = self.run(names, input_feed, run_options)
            except Exception as raised:  # the callback receives every error
                error = str(raised) or type(raised).__name__
            callback(outputs, user_data, error)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="smelt-session")
        self._pool.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """`run` with `OrtValue` inputs and outputs."""
        names = self._names(output_names)
        outputs = self._call({name: each._value for name, each in input_dict_ort_values.items()}, run_options)
        return [OrtValue(outputs[name], self._device) for name in names]

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run with the bound inputs and write to the bound outputs."""
        outputs = self._call({name: each._value for name, each in iobinding._inputs.items()}, run_options)
        iobinding._receive(outputs, self._device)

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def _call(self, feed: Mapping[str, Any], run_options: RunOptions | None) -> dict[str, Any]:
        missing = [port.name for port in self._model.signature.inputs if port.name not in feed]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({sorted(feed)}). "
                f"Expected {[port.name for port in self._model.signature.inputs]}"
            )
        cancel = None if run_options is None else run_options._cancel
        inputs = {name: each._value if isinstance(each, OrtValue) else each for name, each in feed.items()}
        with self._span("model_run"):
            ports = self._model.signature
            plain = inputs.keys() <= {port.name for port in ports.inputs}  # defaults stay as they are
            if self._trace is not None and self._trace.is_instrumented and plain:
                arrays = self._trace.call(
                    [np.asarray(as_array(inputs[port.name])) for port in ports.inputs], Stop.of(cancel=cancel)
                )
                return dict(zip([port.name for port in ports.outputs], arrays, strict=True))
            return self._model.run(inputs, cancel=cancel)

    def _names(self, wanted: Sequence[str] | None) -> list[str]:
        known = [port.name for port in self._model.signature.outputs]
        unknown = [name for name in wanted or () if name not in known]
        if unknown:
            names = ", ".join(known)
            raise RunError(
                "the model has no such output", expected=names, got=", ".join(unknown), remedy="run(None, …)"
            )
        return list(wanted or known)

    # -- metadata --

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self._model.signature.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self._model.signature.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initialisers that are graph inputs too."""
        required = {port.name for port in self._model.signature.inputs}
        return [_node_arg(port) for port in self._model.optional if port.name not in required]

    def get_providers(self) -> list[str]:
        """The provider in use, and the CPU as onnxruntime lists it."""
        return list(dict.fromkeys([self._provider, *(name for name in self._wanted if name == "CPUExecutionProvider")]))

    def get_provider_options(self) -> dict[str, Options]:
        return {name: dict(self._wanted.get(name, {})) for name in self.get_providers()}

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_modelmeta(self) -> ModelMetadata:
        if self._path.suffix.lower() != ".onnx":
            return ModelMetadata(self._model.name, dict(self._model.metadata))
        said = describe(self._path)
        return ModelMetadata(
            said.graph_name,
            dict(self._model.metadata),
            said.producer_name,
            said.domain,
            said.description,
            said.graph_description,
            said.version,
        )

    # -- profiling and fallback --

    def end_profiling(self) -> str:
        """Write the trace, for chrome://tracing and Perfetto, and return the file's name."""
        if self._trace is None:
            return ""
        return self._trace.write()

    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._trace is None else self._trace.start

    def enable_fallback(self) -> None:
        """A failing call is never tried on another provider: both are no-ops."""

    def disable_fallback(self) -> None:
        """A failing call is never tried on another provider: both are no-ops."""

    def _span(self, name: str) -> Any:
        from contextlib import nullcontext

        return nullcontext() if self._trace is None else self._trace.span(name)

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._model.close()

    def __repr__(self) -> str:
        return f"<InferenceSession {self._model!r} ({self._provider})>"


class IOBinding:
    """Inputs and outputs bound by name, for calls without copies."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | None] = {}  # None: wherever the result is
        self._results: dict[str, OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        self.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(arr_on_cpu))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Memory at an address, on the CPU."""
        _host_only(device_type)
        self.bind_ortvalue_input(name, OrtValue(_array_at(buffer_ptr, shape, element_type)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        model = self._session._model
        _check_name(name, (*model.signature.inputs, *model.optional), "input")
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Without an address the result is allocated by the device."""
        _check_name(name, self._session._model.signature.outputs, "output")
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        _host_only(device_type)
        if shape is None or element_type is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._outputs[name] = OrtValue(_array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """The result is written into the value's memory."""
        _check_name(name, self._session._model.signature.outputs, "output")
        self._outputs[name] = ortvalue

    def get_outputs(self) -> list[OrtValue]:
        return [self._results[name] for name in self._outputs if name in self._results]

    def copy_outputs_to_cpu(self) -> list[Any]:
        ports = {port.name: port for port in self._session._model.signature.outputs}
        return [_as_onnx(ports[name], self._results[name].numpy()) for name in self._outputs if name in self._results]

    def synchronize_inputs(self) -> None:
        """Does nothing: bound inputs are complete before a call."""

    def synchronize_outputs(self) -> None:
        """Wait for the results."""
        for value in self._results.values():
            value.numpy()

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results.clear()

    def _receive(self, outputs: Mapping[str, Any], device: str) -> None:
        self._results = {}
        for name, bound in self._outputs.items():
            if bound is None:
                self._results[name] = OrtValue(outputs[name], device)
            else:
                bound.update_inplace(as_array(outputs[name]))
                self._results[name] = bound


def _node_arg(port: Port) -> NodeArg:
    sizes: list[int | str] = [
        size if isinstance(size, int) else bare_symbol(size) or str(size) for size in port.shape.sizes
    ]
    return NodeArg(port.name, type_of_port(port), [] if port.keys else sizes)


def _as_onnx(port: Port, value: Any) -> Any:
    """An output in onnxruntime's form: an array, or for ZipMap a list with one dictionary per row."""
    array = as_array(value)
    return [dict(zip(port.keys, row, strict=True)) for row in array.tolist()] if port.keys else array


def _check_name(name: str, ports: Sequence[Port], kind: str) -> None:
    if all(port.name != name for port in ports):
        known = ", ".join(port.name for port in ports)
        raise RunError(
            f"the model has no such {kind}", expected=known, got=name, remedy=f"session.get_{kind}s() lists them"
        )


def _host_only(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise UnsupportedError("only host memory can be bound by its address", got=device_type, remedy="an OrtValue")


def _array_at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    element = numpy_type(element_type)
    count = int(np.prod(tuple(shape), dtype=np.int64)) * element.itemsize
    block = (ctypes.c_char * count).from_address(address)
    array: Array = np.frombuffer(memoryview(block), element).reshape(tuple(shape))
    return array
