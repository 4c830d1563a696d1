# mypy: ignore-errors
"""The same exchanges with MLServer and with smelt must agree in their structure; run with a Python that has mlserver.

    python reference_tour.py THEIR_HTTP THEIR_GRPC OUR_HTTP OUR_GRPC

Both serve `twice`. Over HTTP the records are compared field by field, by their types. Over gRPC the messages are read
by the stubs that MLServer publishes, and compared by the fields that are set. Any difference ends the tour.
"""

import json
import sys
import urllib.error
import urllib.request

import grpc
from mlserver.grpc import dataplane_pb2 as kinds
from mlserver.grpc import dataplane_pb2_grpc as stubs

OWN = {"detail", "seconds", "reason"}  # fields that ours may have besides
FREE = {"parameters", "id"}  # that the protocol leaves to the server


def ask(address, method, path, body=None):
    data = None if body is None else json.dumps(body).encode() if not isinstance(body, bytes) else body
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status, text, kind = reply.status, reply.read(), reply.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        status, text, kind = error.code, error.read(), error.headers["Content-Type"]
    return status, kind, json.loads(text) if text else None


def compare(where, theirs, ours):
    """Whether our record has the fields of theirs, with the same types, and no other."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), (where, theirs, ours)
        missing = theirs.keys() - ours.keys() - FREE
        more = ours.keys() - theirs.keys() - FREE - OWN
        assert not missing, (where, "missing", missing)
        assert not more, (where, "more", more)
        for key in theirs.keys() & ours.keys():
            compare(f"{where}.{key}", theirs[key], ours[key])
    elif isinstance(theirs, list):
        assert isinstance(ours, list), (where, theirs, ours)
        for each in zip(theirs, ours, strict=False):
            compare(f"{where}[]", *each)
    elif isinstance(theirs, (int, float)):
        assert isinstance(ours, (int, float)), (where, theirs, ours)
    else:
        assert type(theirs) is type(ours), (where, theirs, ours)


TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 10]}
ASKED = {"id": "r1", "inputs": [TENSOR]}
EXCHANGES = [
    ("GET", "/v2", None),
    ("GET", "/v2/health/live", None),
    ("GET", "/v2/health/ready", None),
    ("GET", "/v2/models/twice", None),
    ("GET", "/v2/models/twice/versions/1", None),
    ("GET", "/v2/models/twice/ready", None),
    ("POST", "/v2/models/twice/infer", ASKED),
    ("POST", "/v2/models/twice/versions/1/infer", ASKED),
    ("POST", "/v2/models/twice/infer", {"inputs": [{**TENSOR, "data": [[1, 10]]}], "outputs": [{"name": "y"}]}),
    ("POST", "/v2/models/twice/infer", {"inputs": [{**TENSOR, "parameters": {"content_type": "np"}}]}),
    ("POST", "/v2/repository/index", {}),
    ("POST", "/v2/repository/models/twice/load", None),
    ("GET", "/v2/models/nothing", None),
    ("GET", "/v2/models/nothing/ready", None),
    ("POST", "/v2/models/nothing/infer", ASKED),
    ("POST", "/v2/repository/models/nothing/load", None),
]
REFUSED = [("POST", "/v2/models/twice/infer", b'{"inputs":'), ("POST", "/v2/models/twice/infer", {})]


def tour_http(theirs, ours):
    for exchange in EXCHANGES:
        (status, kind, record), (our_status, our_kind, our_record) = (ask(each, *exchange) for each in (theirs, ours))
        assert status == our_status, (exchange, status, our_status, our_record)
        if record is not None:
            assert kind == our_kind, (exchange, kind, our_kind)
            compare(exchange[1], record, our_record)
    for exchange in REFUSED:  # the protocol says 4xx; MLServer's records of these are FastAPI's
        for address in (theirs, ours):
            assert 400 <= ask(address, *exchange)[0] < 500, exchange
    assert ask(ours, *EXCHANGES[6])[2]["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2, 20]}
    ]


def names_set(message):
    return {field.name for field, _ in message.ListFields()} - FREE


def tour_grpc(theirs, ours):
    """Streams are not here: MLServer has messages of its own for them, ours are Triton's (`triton_tour`)."""
    channels = [grpc.insecure_channel(each) for each in (theirs, ours)]
    services = [stubs.GRPCInferenceServiceStub(channel) for channel in channels]
    tensor = kinds.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    tensor.contents.fp32_contents.extend([1, 10])
    bare = kinds.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 2])
    raw = [b"\0\0\x80?\0\0 A"]
    calls = [
        ("ServerLive", kinds.ServerLiveRequest()),
        ("ServerReady", kinds.ServerReadyRequest()),
        ("ModelReady", kinds.ModelReadyRequest(name="twice")),
        ("ModelMetadata", kinds.ModelMetadataRequest(name="twice")),
        ("ModelInfer", kinds.ModelInferRequest(model_name="twice", id="r1", inputs=[tensor])),
        ("ModelInfer", kinds.ModelInferRequest(model_name="twice", inputs=[bare], raw_input_contents=raw)),
    ]
    for method, message in calls:
        found = [getattr(service, method)(message, timeout=30) for service in services]
        left = [names_set(each) - {"raw_output_contents", "versions"} for each in found]
        assert left[0] == left[1], (method, left)
        if method == "ModelMetadata":
            assert found[0].inputs == found[1].inputs, found
            assert found[0].outputs == found[1].outputs, found
        if method == "ModelInfer":
            rows = [each.outputs[0] for each in found]
            assert [(row.name, row.datatype, list(row.shape)) for row in rows] == [("y", "FP32", [1, 2])] * 2
            assert found[1].raw_output_contents == [b"\0\0\0@\0\0\xa0A"]
    for method, message in (
        ("ModelMetadata", kinds.ModelMetadataRequest(name="nothing")),
        ("ModelInfer", kinds.ModelInferRequest(model_name="nothing", inputs=[tensor])),
    ):
        codes = []
        for service in services:
            try:
                getattr(service, method)(message, timeout=30)
            except grpc.RpcError as error:
                codes.append(error.code())
        assert codes == [grpc.StatusCode.NOT_FOUND] * 2, (method, codes)


tour_http(sys.argv[1], sys.argv[3])
tour_grpc(sys.argv[2], sys.argv[4])
print("the tour is over")
