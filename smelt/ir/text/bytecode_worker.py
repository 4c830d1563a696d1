"""A worker process that converts portable bytecode to text: jaxlib can crash on damaged bytes.

Bytecode on stdin → text on stdout, or one line with the error and exit status 1. `bytecode` starts it.
"""

from __future__ import annotations

import sys

from smelt.ir.text.bytecode import text_of


def main() -> int:
    try:
        text = text_of(sys.stdin.buffer.read())
    except ValueError as error:
        print(error)
        return 1
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
