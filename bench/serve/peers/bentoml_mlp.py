"""The MLP in BentoML."""

import bentoml
from mlp_numpy import answer


@bentoml.service(traffic={"timeout": 30})
class Mlp:
    @bentoml.api(route="/infer")
    def infer(self, inputs: list) -> dict:
        return answer({"inputs": inputs})
