"""`python -m smelt.serve.front LISTENER LINK`: one of several server processes; its configuration comes on stdin."""

from __future__ import annotations

import socket
import sys

import msgspec

from smelt.run.executable import share_weights
from smelt.serve.config import Config
from smelt.serve.fronts import end_with_supervisor
from smelt.serve.server import serve_on


class Start(msgspec.Struct):
    config: Config
    quiet: bool
    unloaded: list[str]


def main() -> None:
    end_with_supervisor()
    share_weights()  # with the models of the other processes
    listener, link = (socket.socket(fileno=int(text)) for text in sys.argv[1:3])
    said = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    serve_on(said.config, listener, said.quiet, link, said.unloaded)


if __name__ == "__main__":
    main()
