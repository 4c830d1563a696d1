# mypy: ignore-errors
"""A tour of the server with `tritonclient`, unmodified, over HTTP and gRPC; run with a Python that has it.

    python triton_tour.py HTTP_ADDRESS GRPC_ADDRESS

The server has `digits`, `echo`, which returns its inputs, one of every type of numbers, and `shout`, which returns
strings in capitals. Any difference ends the tour.
"""

import asyncio
import queue
import sys

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

NUMBERS = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
NUMBERS += ("float16", "float32", "float64")


def arrays():
    made = {f"in_{name}": np.array([[0, 1, 1]]).astype(name) for name in NUMBERS}
    return {**made, "in_bfloat16": np.array([[0, 1.5, -3]], ml_dtypes.bfloat16)}


def inputs(kind, binary=True):
    """The client itself has no JSON for 16-bit floats."""
    found = []
    for name, array in arrays().items():
        each = kind.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        is_half = name in ("in_float16", "in_bfloat16")
        each.set_data_from_numpy(array, **({"binary_data": binary or is_half} if kind is triton_http else {}))
        found.append(each)
    return found


def check(result):
    for name, array in arrays().items():
        got = result.as_numpy(name.replace("in_", "out_"))
        assert got.dtype == array.dtype, (name, got.dtype)
        np.testing.assert_array_equal(got, array)


def refused(call, status):
    try:
        call()
    except InferenceServerException as error:
        found = error.status()
    else:
        raise AssertionError("it was not refused")
    assert status in str(found), found


def common(client, kind, missing, wrong):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    check(client.infer("echo", inputs(kind), request_id="1"))
    check(
        client.infer(
            "echo", inputs(kind), outputs=[kind.InferRequestedOutput(n.replace("in_", "out_")) for n in arrays()]
        )
    )
    some = client.infer("echo", inputs(kind), outputs=[kind.InferRequestedOutput("out_int8")])
    assert some.as_numpy("out_int8") is not None
    assert some.as_numpy("out_int16") is None
    for more in ({}, {"binary_data": False}) if kind is triton_http else ({},):
        text = kind.InferInput("text", [2], "BYTES")
        text.set_data_from_numpy(np.array([b"ab", "\u00e9".encode()], object), **more)
        assert client.infer("shout", [text]).as_numpy("loud").tolist() == [b"AB", "\u00c9".encode()]
    best = client.infer(
        "digits", [pixels(kind)], outputs=[kind.InferRequestedOutput("probabilities", class_count=3)]
    ).as_numpy("probabilities")
    assert best.shape == (1, 3)
    values = [float(each.split(b":")[0]) for each in best[0]]
    assert values == sorted(values, reverse=True)
    client.infer("digits", [pixels(kind)], priority=1, timeout=60_000_000, parameters={"mine": "x"})
    refused(lambda: client.infer("nothing", inputs(kind)), missing)
    refused(lambda: client.infer("echo", inputs(kind)[:2]), wrong)
    client.load_model("digits")
    client.unload_model("digits")
    assert not client.is_model_ready("digits")
    client.load_model("digits")
    assert client.is_model_ready("digits")


def tour_http(address):
    with triton_http.InferenceServerClient(address) as client:
        common(client, triton_http, "404", "400")
        assert client.get_server_metadata()["name"] == "smelt"
        assert {row["name"] for row in client.get_model_metadata("echo")["inputs"]} == set(arrays())
        assert client.get_model_config("echo")["name"] == "echo"
        assert {row["name"] for row in client.get_model_repository_index()} == {"echo", "digits", "shout"}
        check(client.infer("echo", inputs(triton_http, binary=False)))
        for way in ("gzip", "deflate"):
            check(client.infer("echo", inputs(triton_http), request_compression_algorithm=way))
        check(client.infer("echo", inputs(triton_http), response_compression_algorithm="gzip"))
        stats = client.get_inference_statistics("echo")["model_stats"][0]
        assert stats["inference_stats"]["success"]["count"] >= 5
        check(client.async_infer("echo", inputs(triton_http)).get_result())

    async def again():
        async with triton_http_aio.InferenceServerClient(address) as client:
            check(await client.infer("echo", inputs(triton_http)))
            results = await asyncio.gather(*(client.infer("digits", [pixels(triton_http)]) for _ in range(20)))
            assert {result.as_numpy("probabilities").tobytes() for result in results}.__len__() == 1

    asyncio.run(again())


def pixels(kind):
    made = kind.InferInput("pixels", [1, 64], "FP32")
    made.set_data_from_numpy(np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64))
    return made


def tour_grpc(address):
    with triton_grpc.InferenceServerClient(address) as client:
        common(client, triton_grpc, "NOT_FOUND", "INVALID_ARGUMENT")
        assert client.get_server_metadata().name == "smelt"
        assert {row.name for row in client.get_model_metadata("echo").inputs} == set(arrays())
        assert client.get_model_config("echo").config.name == "echo"
        assert {row.name for row in client.get_model_repository_index().models} == {"echo", "digits", "shout"}
        assert client.get_inference_statistics("echo").model_stats[0].inference_stats.success.count >= 3
        found = queue.Queue()
        client.async_infer("echo", inputs(triton_grpc), lambda result, error: found.put((result, error)))
        result, error = found.get(timeout=30)
        assert error is None
        check(result)
        client.start_stream(lambda result, error: found.put((result, error)))
        for i in range(5):
            client.async_stream_infer("echo", inputs(triton_grpc), request_id=str(i))
        client.async_stream_infer("nothing", inputs(triton_grpc))
        for i in range(5):
            result, error = found.get(timeout=30)
            assert error is None
            assert result.get_response().id == str(i)
            check(result)
        assert "no model" in str(found.get(timeout=30)[1])
        client.stop_stream()

    async def again():
        async with triton_grpc_aio.InferenceServerClient(address) as client:
            check(await client.infer("echo", inputs(triton_grpc)))

    asyncio.run(again())


def tour_shared_memory(client, kind):
    """Inputs and outputs in one region of POSIX shared memory."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    region = shm.create_shared_memory_region("tour", "/smelt_triton_tour", 2 * array.nbytes)
    try:
        shm.set_shared_memory_region(region, [array])
        client.register_system_shared_memory("tour", "/smelt_triton_tour", 2 * array.nbytes)
        found = []
        for name, other in arrays().items():
            each = kind.InferInput(name, (2, 3), np_to_triton_dtype(other.dtype))
            if name == "in_int32":
                each.set_shared_memory("tour", array.nbytes)
            else:
                each.set_data_from_numpy(np.zeros((2, 3), other.dtype))
            found.append(each)
        shared = kind.InferRequestedOutput("out_int32")
        shared.set_shared_memory("tour", array.nbytes, offset=array.nbytes)
        result = client.infer("echo", found, outputs=[shared, kind.InferRequestedOutput("out_float64")])
        np.testing.assert_array_equal(result.as_numpy("out_float64"), np.zeros((2, 3)))
        got = shm.get_contents_as_numpy(region, np.int32, (2, 3), offset=array.nbytes)
        np.testing.assert_array_equal(got, array)
        status = client.get_system_shared_memory_status("tour")
        assert "tour" in str(status)
        client.unregister_system_shared_memory("tour")
        assert not client.get_system_shared_memory_status() or not client.get_system_shared_memory_status().regions
    finally:
        shm.destroy_shared_memory_region(region)


tour_http(sys.argv[1])
tour_grpc(sys.argv[2])
with triton_http.InferenceServerClient(sys.argv[1]) as http_client:
    tour_shared_memory(http_client, triton_http)
with triton_grpc.InferenceServerClient(sys.argv[2]) as grpc_client:
    tour_shared_memory(grpc_client, triton_grpc)
print("the tour is over")
