"""smelt: take any model, prove its shapes, compile it for this machine, run it.

    import smelt

    model = smelt.load("model.onnx")
    y = model(image=x)["logits"]

The names below are all there is to the public surface; each is imported when it is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from smelt.version import __version__

_PUBLIC = {
    "Shape": "smelt.shape",
    "SmeltError": "smelt.errors",
    "Cancel": "smelt.stop",
    "CancelledError": "smelt.errors",
    "TimedOutError": "smelt.errors",
    "HostBuffer": "smelt.buffer",
    "Weights": "smelt.weights",
    "open": "smelt.read.checkpoint",
    "Program": "smelt.ir.core",
    "parse": "smelt.ir.text",
    "print_program": "smelt.ir.text",
    "verify": "smelt.ir.verify",
    **dict.fromkeys(("jvp", "vjp"), "smelt.tensor.jit.grad"),
    "vmap": "smelt.tensor.vmap",
    **dict.fromkeys(
        ("custom_gradient", "grad", "hessian", "jacobian", "remat", "stop_gradient", "value_and_grad"),
        "smelt.tensor.grad",
    ),
    "platform": "smelt.engine",
    "read": "smelt.read",  # the package, which can be called
    "Executable": "smelt.tensor.jit.executable",
    "compile": "smelt.tensor.jit.compile",
    "compile_and_load": "smelt.tensor.jit.compile",
    "compile_and_load_async": "smelt.tensor.jit.compile",
    "export": "smelt.write.export",
    "instantiate": "smelt.tensor.instantiate",
    "Mesh": "smelt.mesh",
    "shard": "smelt.tensor.sharding",
    "DeviceLost": "smelt.errors",
    "tensor": "smelt.tensor",  # the package, which can be called
    "nn": "smelt.nn",
    "client": "smelt.client",
    "llm": "smelt.llm",
    "train": "smelt.train",
    **dict.fromkeys(
        (
            "Dim",
            "Model",
            "Shaped",
            "Tensor",
            "TensorError",
            "arange",
            "assume",
            "checked",
            "concatenate",
            "cond",
            "custom_call",
            "fori_loop",
            "from_dlpack",
            "full",
            "iota",
            "maximum",
            "minimum",
            "ones",
            "outer",
            "random",
            "realize",
            "scan",
            "stack",
            "symbolic",
            "where",
            "while_loop",
            "zeros",
        ),
        "smelt.tensor",
    ),
}

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from smelt import client as client
    from smelt import llm as llm
    from smelt import nn as nn
    from smelt import train as train
    from smelt.buffer import HostBuffer as HostBuffer
    from smelt.engine import platform as platform
    from smelt.engine_api import Executable as Compiled
    from smelt.errors import CancelledError as CancelledError
    from smelt.errors import DeviceLost as DeviceLost
    from smelt.errors import SmeltError as SmeltError
    from smelt.errors import TimedOutError as TimedOutError
    from smelt.ir.core import Program as Program
    from smelt.ir.text import parse as parse
    from smelt.ir.text import print_program as print_program
    from smelt.ir.verify import verify as verify
    from smelt.mesh import Mesh as Mesh
    from smelt.model import read as read
    from smelt.read.checkpoint import open as open
    from smelt.run.loaded import LoadedModel as LoadedModel
    from smelt.shape import Shape as Shape
    from smelt.stop import Cancel as Cancel
    from smelt.tensor import Dim as Dim
    from smelt.tensor import Model as Model
    from smelt.tensor import Shaped as Shaped
    from smelt.tensor import Tensor as Tensor
    from smelt.tensor import TensorError as TensorError
    from smelt.tensor import arange as arange
    from smelt.tensor import assume as assume
    from smelt.tensor import checked as checked
    from smelt.tensor import concatenate as concatenate
    from smelt.tensor import cond as cond
    from smelt.tensor import custom_call as custom_call
    from smelt.tensor import fori_loop as fori_loop
    from smelt.tensor import from_dlpack as from_dlpack
    from smelt.tensor import full as full
    from smelt.tensor import iota as iota
    from smelt.tensor import maximum as maximum
    from smelt.tensor import minimum as minimum
    from smelt.tensor import ones as ones
    from smelt.tensor import outer as outer
    from smelt.tensor import realize as realize
    from smelt.tensor import scan as scan
    from smelt.tensor import stack as stack
    from smelt.tensor import symbolic as symbolic
    from smelt.tensor import tensor as tensor
    from smelt.tensor import where as where
    from smelt.tensor import while_loop as while_loop
    from smelt.tensor import zeros as zeros
    from smelt.tensor.grad import custom_gradient as custom_gradient
    from smelt.tensor.grad import grad as grad
    from smelt.tensor.grad import hessian as hessian
    from smelt.tensor.grad import jacobian as jacobian
    from smelt.tensor.grad import remat as remat
    from smelt.tensor.grad import stop_gradient as stop_gradient
    from smelt.tensor.grad import value_and_grad as value_and_grad
    from smelt.tensor.instantiate import instantiate as instantiate
    from smelt.tensor.jit.compile import compile as compile
    from smelt.tensor.jit.compile import compile_and_load as compile_and_load
    from smelt.tensor.jit.compile import compile_and_load_async as compile_and_load_async
    from smelt.tensor.jit.executable import Executable as Executable
    from smelt.tensor.jit.grad import jvp as jvp
    from smelt.tensor.jit.grad import vjp as vjp
    from smelt.tensor.ops import random as random
    from smelt.tensor.sharding import shard as shard
    from smelt.tensor.vmap import vmap as vmap
    from smelt.weights import Weights as Weights
    from smelt.write.export import export as export

__all__ = ["__version__", "deserialize", "load", *_PUBLIC]


def load(
    path: str | Path | bytes | bytearray | memoryview | IO[bytes],
    *,
    device: str = "auto",
    engine: str = "auto",
    static: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str | None = None,
    memory_limit: int | str | None = None,
    tune: float | None = None,
    verify: bool | None = None,
    keys: Sequence[str] | None = None,
    context: int | None = None,
    cache: str | None = None,
    sequences: int | None = None,
    devices: int | None = None,
    mesh: Mesh | None = None,
) -> LoadedModel:
    """A model that can be called, from a path: `smelt.load("model.onnx")(pixels=x)["probabilities"]`.

    Bytes and open files work as well; their content says which format it is.

    A model file is read, compiled and bound (`smelt.model.load`). A bundle (`.smelt`) is mapped, checked and runs
    without the modules that compile; `verify` and `keys` are for the check (`smelt.run.load`). A file that an
    executable of the pjrt engine saved gives that executable, for `prepare`. A language model (a Hugging Face folder,
    a `.gguf` file, a bundle of one) takes `context`, `cache` and `sequences`, one that is no bundle `devices` and
    `mesh`, too; `smelt.llm.load` has the type for it. Without `precision` a model file runs in f32, a language model
    in what suits its weights. An option that does not apply is refused.
    """
    given = {name: value for name, value in locals().items() if name != "path"}
    options = {name: value for name, value in given.items() if value != _OPTIONS[name]}
    if not isinstance(path, str | os.PathLike):
        return _load_spooled(path, options)  # type: ignore[no-any-return]
    if str(path).lower().endswith(".smelt"):
        return _load_saved(path, options)  # type: ignore[no-any-return]
    if str(path).lower().endswith(".gguf") or os.path.isfile(os.path.join(path, "config.json")):
        _only(path, "a language model", options, "static", "sizes", "tune", "verify", "keys")
        return import_module("smelt.llm").load(path, **options)  # type: ignore[no-any-return]
    _only(path, "a model file", options, "verify", "keys", "context", "cache", "sequences", "devices", "mesh")
    return import_module("smelt.model").load(path, **options)  # type: ignore[no-any-return]


_OPTIONS: dict[str, Any] = load.__kwdefaults__ or {}  # with their defaults


def _only(
    path: str | Path, kind: str, options: dict[str, Any], *lacking: str, known: Mapping[str, Any] = _OPTIONS
) -> dict[str, Any]:
    """The options of a call, none of which is one that this kind of file lacks."""
    if refused := [name for name in lacking if name in options]:
        raise import_module("smelt.errors").UnsupportedError(
            f"{path}: {kind} has no option {refused[0]}",
            expected=", ".join(name for name in known if name not in lacking),
            got=", ".join(refused),
            remedy=f"leave out {' and '.join(refused)}",
        )
    return options


def _load_spooled(source: Any, options: dict[str, Any]) -> Any:
    """A model from bytes or an open file: a temporary file that lives as long as the model."""
    folder, path = import_module("smelt.formats").spool(source)
    try:
        model = load(path, **options)
    except BaseException:
        folder.cleanup()
        raise
    import_module("weakref").finalize(model, folder.cleanup)
    return model


def _load_saved(path: str | Path, options: dict[str, Any]) -> Any:
    bundle = import_module("smelt.run.load")
    if (data := bundle.foreign(path, options.get("keys"))) is None:
        return _load_bundle(bundle, path, options)
    if options.get("engine") == "pjrt":
        del options["engine"]
    lacking = [name for name in options if name not in ("device", "keys")]
    return deserialize(data, **_only(path, "an executable of the pjrt engine", options, *lacking))


def _load_bundle(bundle: Any, path: str | Path, options: dict[str, Any]) -> Any:
    """A bundle; one of a language model takes `context` and `sequences`."""
    own: dict[str, Any] = {name: options.pop(name) for name in ("context", "sequences") if name in options}
    _only(path, "a bundle", options, "cache", "devices", "mesh")
    model = bundle.load(path, _recompile, **options)
    if "language.json" in model.files:
        own |= {"memory_limit": options.get("memory_limit")}
        return import_module("smelt.llm.bundle").language_model(model, path, **own)
    if own:
        model.close()
        _only(path, "a bundle", own, *own)
    return model


def deserialize(
    data: bytes | bytearray | memoryview,
    *,
    verify: bool | None = None,
    keys: Sequence[str] | None = None,
    device: str = "auto",
    isolate: bool = False,
    mesh: Mesh | None = None,
) -> Compiled:
    """The executable whose `serialize()` gave these bytes.

    `keys` are for the check of signatures, `verify` for that of a bundle's content (`smelt.run.load`). An executable of
    the pjrt engine takes `device`, `isolate` and `mesh` (`smelt.platform`).
    """
    bundle = import_module("smelt.run.load")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise import_module("smelt.errors").FileError(
            "this is no executable",
            expected="the bytes that serialize() gave",
            got=type(data).__name__,
            remedy="smelt.load takes paths",
        )
    given = {"verify": verify, "device": device, "isolate": isolate, "mesh": mesh}
    options = {name: value for name, value in given.items() if value != _DESERIALIZE[name]}
    if bytes(data[: len(bundle.PJRT)]) == bundle.PJRT:
        _only("the bytes", "an executable of the pjrt engine", options, "verify", known=_DESERIALIZE)
        bundle.Gate(keys).admit("the executable", bundle.PJRT)
        engine = import_module("smelt.engine").platform(engine="pjrt", **options).engine
        return engine.deserialize(bytes(data))  # type: ignore[no-any-return]
    _only("the bytes", "a bundle", options, "device", "isolate", "mesh", known=_DESERIALIZE)
    return bundle.deserialize(data, _recompile, verify=verify, keys=keys)  # type: ignore[no-any-return]


_DESERIALIZE: dict[str, Any] = deserialize.__kwdefaults__ or {}


def _recompile(*program: Any) -> Any:
    """Compile a bundle's program where the bundle has no code for this machine."""
    return import_module("smelt.engine.store").recompile(*program)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'smelt' has no attribute {name!r}")
    module = import_module(_PUBLIC[name])
    value = module if name in ("client", "tensor", "nn", "read", "llm", "train") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
