"""The MLP in LitServe."""

import sys

import litserve
from mlp_numpy import answer


class Mlp(litserve.LitAPI):
    def setup(self, device):
        pass

    def predict(self, request):
        return answer(request)


if __name__ == "__main__":
    litserve.LitServer(Mlp(), accelerator="cpu").run(port=int(sys.argv[1]), generate_client_file=False)
