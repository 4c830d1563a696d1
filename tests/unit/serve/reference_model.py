# mypy: ignore-errors
"""The model that MLServer serves beside ours: twice its input. Run with a Python that has mlserver."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Twice(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        outputs = [NumpyCodec.encode_output("y", 2 * x)]
        return InferenceResponse(id=payload.id, model_name=self.name, model_version="1", outputs=outputs)
