"""Options of sessions and runs, with onnxruntime's names and defaults. Setting an unknown option is an error."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from smelt.compat.values import OrtValue
from smelt.errors import UnsupportedError
from smelt.stop import Cancel


class GraphOptimizationLevel(IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """How a model is loaded.

    These have an effect: `intra_op_num_threads` (smelt has one pool per process, so the last session to ask decides),
    `add_free_dimension_override_by_name`, `enable_profiling`, `profile_file_prefix`, `log_severity_level`. Those about
    memory arenas, graph optimisation and execution order are accepted: smelt plans memory and fuses ahead of time, and
    results do not depend on them. Custom op libraries and replaced initialisers are refused.
    """

    __slots__ = (
        "_config",
        "_dimensions",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self._config: dict[str, str] = {}
        self._dimensions: dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry for `get_session_config_entry`. It has no effect."""
        self._config[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix a dynamic dimension: the model is compiled for this size alone."""
        self._dimensions[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        raise UnsupportedError(
            "smelt fixes dimensions by name, not by denotation",
            remedy=f"add_free_dimension_override_by_name(NAME, {size})",
        )

    def register_custom_ops_library(self, path: str) -> None:
        raise UnsupportedError(
            "a library of custom operators for onnxruntime does not run in smelt",
            got=path,
            remedy="write the operator as an ONNX function in the model",
        )

    def add_initializer(self, name: str, value: OrtValue) -> None:
        raise UnsupportedError(
            "weights come from the model file", got=name, remedy="make it an input of the graph, or edit the file"
        )

    def add_external_initializers(self, names: Any, values: Any) -> None:
        self.add_initializer(", ".join(map(str, names)), values)


class RunOptions:
    """How one call runs. `terminate = True`, set from another thread, ends the calls that run with these options.

    Later calls with them are refused until `terminate = False`.
    """

    __slots__ = (
        "_cancel",
        "_config",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
    )

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self._cancel = Cancel()
        self._config: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry for `get_run_config_entry`. It has no effect."""
        self._config[key] = value

    def get_run_config_entry(self, key: str) -> str:
        if key not in self._config:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._config[key]

    @property
    def terminate(self) -> bool:
        return self._cancel.cancelled

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self._cancel.cancel()
        elif self._cancel.cancelled:
            self._cancel = Cancel()  # calls that are ending keep the old token
