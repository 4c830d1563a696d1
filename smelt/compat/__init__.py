"""ONNX Runtime's Python API on smelt, so that a user changes one import: `import smelt.compat as ort`.

The names, arguments and return values are onnxruntime's. What smelt cannot do is refused with a reason, never ignored:
the docstrings of `SessionOptions` and `InferenceSession` say which settings have an effect. `Backend` is ONNX's own
backend interface.
"""

import logging

from smelt.compat.backend import Backend, PreparedModel
from smelt.compat.options import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, RunOptions, SessionOptions
from smelt.compat.providers import get_all_providers, get_available_providers, get_device
from smelt.compat.session import InferenceSession, IOBinding, ModelMetadata, NodeArg
from smelt.compat.values import OrtDevice, OrtValue
from smelt.errors import UnsupportedError
from smelt.version import __version__

__all__ = [
    "Backend",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "PreparedModel",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

SessionIOBinding = IOBinding


def get_version_string() -> str:
    """smelt's version."""
    return __version__


def get_build_info() -> str:
    """A line of build information: the name and version of smelt."""
    return f"smelt {__version__}"


def set_default_logger_severity(severity: int) -> None:
    """0 verbose, 1 info, 2 warning, 3 error, 4 fatal: the level of the logger `smelt`."""
    if not 0 <= severity <= 4:
        raise ValueError(f"a severity is 0 to 4, not {severity}")
    logging.getLogger("smelt").setLevel(10 * (severity + 1))


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted without effect: smelt's log has one level of verbosity."""


def set_seed(seed: int) -> None:
    """Random operators draw from their own `seed` attribute in smelt, so a global seed is refused."""
    raise UnsupportedError("a global seed has no effect on a compiled program", remedy="set the operators' seed")


def disable_telemetry_events() -> None:
    """Accepted without effect: smelt collects no telemetry."""


def enable_telemetry_events() -> None:
    """Accepted without effect: smelt sends no telemetry."""
