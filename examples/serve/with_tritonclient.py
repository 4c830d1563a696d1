"""Call a server with `tritonclient`, over HTTP and, where a port is given, over gRPC.

pip install "tritonclient[http,grpc]"
smelt serve smelt/assets/digits.onnx --grpc-port 8001
python examples/serve/with_tritonclient.py --grpc 127.0.0.1:8001
"""

import argparse

import numpy as np


def main() -> None:
    import tritonclient.grpc
    import tritonclient.http

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", default="127.0.0.1:8000")
    parser.add_argument("--grpc")
    given = parser.parse_args()

    images = np.load("smelt/assets/digits_test.npz")
    pixels = (images["images"][:8] / 16).astype(np.float32)
    clients = [(tritonclient.http, given.http)] + ([(tritonclient.grpc, given.grpc)] if given.grpc else [])
    for kind, address in clients:
        with kind.InferenceServerClient(address) as client:
            tensor = kind.InferInput("pixels", pixels.shape, "FP32")
            tensor.set_data_from_numpy(pixels)
            found = client.infer("digits", [tensor]).as_numpy("probabilities")
            print(kind.__name__, found.argmax(1).tolist(), "are", images["labels"][:8].tolist())


if __name__ == "__main__":
    main()
