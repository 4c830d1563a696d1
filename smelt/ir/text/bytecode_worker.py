"""A process of its own that turns portable bytecode into text: jaxlib can crash on damaged bytes.

Bytes come on stdin. Out goes the text, or one line with what is wrong and exit status 1. Started by `bytecode`.
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
