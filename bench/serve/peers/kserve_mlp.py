"""The MLP in KServe's server."""

import numpy as np
from kserve import InferOutput, InferResponse, Model, ModelServer
from mlp_numpy import run


class Mlp(Model):
    def __init__(self):
        super().__init__("mlp")
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        y = run(payload.inputs[0].as_numpy())
        output = InferOutput(name="y", datatype="FP32", shape=list(y.shape))
        output.set_data_from_numpy(y.astype(np.float32), binary_data=False)
        return InferResponse(model_name=self.name, infer_outputs=[output], response_id="")


if __name__ == "__main__":
    ModelServer().start([Mlp()])
