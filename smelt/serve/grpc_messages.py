"""The messages of the Open Inference Protocol over gRPC (package `inference`), built from one table.

Names, numbers and types are those of the published service definition, so every client's stubs fit.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TENSOR = (
    "name:1 string, datatype:2 string, shape:3 int64*, parameters:4 map<InferParameter>, contents:5 InferTensorContents"
)
_REPOSITORY = "repository_name:1 string, model_name:2 string, parameters:3 map<ModelRepositoryParameter>"
_ASKED = "name:1 string, version:2 string"
_REGION = "name:1 string, key:2 string, offset:3 uint64, byte_size:4 uint64"
_DURATION = "count:1 uint64, ns:2 uint64"
# message → `field:number type`, with `*` for repeated fields and `?` for the members of a oneof.
_TABLE = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live:1 bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready:1 bool",
    "ModelReadyRequest": _ASKED,
    "ModelReadyResponse": "ready:1 bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name:1 string, version:2 string, extensions:3 string*",
    "ModelMetadataRequest": _ASKED,
    "TensorMetadata": "name:1 string, datatype:2 string, shape:3 int64*",
    "ModelMetadataResponse": (
        "name:1 string, versions:2 string*, platform:3 string, inputs:4 TensorMetadata*, outputs:5 TensorMetadata*"
    ),
    "InferParameter": (
        "bool_param:1 bool?, int64_param:2 int64?, string_param:3 string?, double_param:4 double?, "
        "uint64_param:5 uint64?"
    ),
    "InferTensorContents": (
        "bool_contents:1 bool*, int_contents:2 int32*, int64_contents:3 int64*, uint_contents:4 uint32*, "
        "uint64_contents:5 uint64*, fp32_contents:6 float*, fp64_contents:7 double*, bytes_contents:8 bytes*"
    ),
    "InferInputTensor": _TENSOR,
    "InferRequestedOutputTensor": "name:1 string, parameters:2 map<InferParameter>",
    "ModelInferRequest": (
        "model_name:1 string, model_version:2 string, id:3 string, parameters:4 map<InferParameter>, "
        "inputs:5 InferInputTensor*, outputs:6 InferRequestedOutputTensor*, raw_input_contents:7 bytes*"
    ),
    "InferOutputTensor": _TENSOR,
    "ModelInferResponse": (
        "model_name:1 string, model_version:2 string, id:3 string, parameters:4 map<InferParameter>, "
        "outputs:5 InferOutputTensor*, raw_output_contents:6 bytes*"
    ),
    "ModelStreamInferResponse": "error_message:1 string, infer_response:2 ModelInferResponse",
    "ModelConfigRequest": _ASKED,
    "ModelInput": "name:1 string, data_type:2 int32, dims:4 int64*",
    "ModelOutput": "name:1 string, data_type:2 int32, dims:3 int64*",
    "ModelConfig": (
        "name:1 string, platform:2 string, backend:17 string, max_batch_size:4 int32, input:5 ModelInput*, "
        "output:6 ModelOutput*"
    ),
    "ModelConfigResponse": "config:1 ModelConfig",
    "ModelStatisticsRequest": _ASKED,
    "StatisticDuration": _DURATION,
    "InferStatistics": (
        "success:1 StatisticDuration, fail:2 StatisticDuration, queue:3 StatisticDuration, "
        "compute_input:4 StatisticDuration, compute_infer:5 StatisticDuration, compute_output:6 StatisticDuration"
    ),
    "InferBatchStatistics": (
        "batch_size:1 uint64, compute_input:2 StatisticDuration, compute_infer:3 StatisticDuration, "
        "compute_output:4 StatisticDuration"
    ),
    "ModelStatistics": (
        "name:1 string, version:2 string, last_inference:3 uint64, inference_count:4 uint64, "
        "execution_count:5 uint64, inference_stats:6 InferStatistics, batch_stats:7 InferBatchStatistics*"
    ),
    "ModelStatisticsResponse": "model_stats:1 ModelStatistics*",
    "ModelRepositoryParameter": (
        "bool_param:1 bool?, int64_param:2 int64?, string_param:3 string?, bytes_param:4 bytes?"
    ),
    "RepositoryIndexRequest": "repository_name:1 string, ready:2 bool",
    "ModelIndex": "name:1 string, version:2 string, state:3 string, reason:4 string",
    "RepositoryIndexResponse": "models:1 ModelIndex*",
    "RepositoryModelLoadRequest": _REPOSITORY,
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": _REPOSITORY,
    "RepositoryModelUnloadResponse": "",
    "SystemSharedMemoryStatusRequest": "name:1 string",
    "RegionStatus": _REGION,
    "SystemSharedMemoryStatusResponse": "regions:1 map<RegionStatus>",
    "SystemSharedMemoryRegisterRequest": _REGION,
    "SystemSharedMemoryRegisterResponse": "",
    "SystemSharedMemoryUnregisterRequest": "name:1 string",
    "SystemSharedMemoryUnregisterResponse": "",
}  # fmt: skip
# Numbers of the configuration's data types.
_NAMES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")
DATA_TYPES = {name: number for number, name in enumerate((*_NAMES, "BYTES", "BF16"), 1)}
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="smelt/open_inference_grpc.proto", package="smelt_inference", syntax="proto3"
    )
    for name, row in _TABLE.items():
        message = file.message_type.add(name=name)
        for text in filter(None, row.split(", ")):
            _add_field(message, text)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    head, kind = text.split(" ")
    name, number = head.split(":")
    field = message.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_MESSAGE)
        value.type_name = f".smelt_inference.{kind[4:-1]}"
        field.label, field.type = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE
        field.type_name = f".smelt_inference.{message.name}.{entry.name}"
        return
    if kind.endswith("*"):
        field.label = _FIELD.LABEL_REPEATED
    if kind.endswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    kind = kind.rstrip("*?")
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".smelt_inference.{kind}"


def messages() -> dict[str, Any]:
    """The message classes by name, in a pool of their own: a client's stubs may live in the same process."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"smelt_inference.{name}")) for name in _TABLE
    }
