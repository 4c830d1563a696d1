"""A client of `smelt serve` and of every other server of the Open Inference Protocol v2.

    client = smelt.client.connect("http://127.0.0.1:8000")
    client.infer("digits", pixels=x)["probabilities"]

Tensors travel in the binary form. A request is tried again while the server is busy or away, until its deadline.
`AsyncClient` is the same for coroutines.
"""

from __future__ import annotations

from smelt.client.calls import AsyncClient, Client, connect

__all__ = ["AsyncClient", "Client", "connect"]
