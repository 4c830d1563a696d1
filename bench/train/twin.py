"""`python bench/train/twin.py`: smelt's loss curve beside its twins', from the same weights and batches.

Exit code 1: a loss of some step is more than `--tolerance` apart.
"""

from __future__ import annotations

import argparse
import sys

from processes import Worker, pythons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("transformer", "resnet"), default="transformer")
    parser.add_argument("--size", choices=("wide", "small"), default="wide")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--against", default="torch,jax")
    parser.add_argument("--python", nargs="*", default=[], metavar="FRAMEWORK=PATH")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    options = parser.parse_args()
    known, job = pythons(options.python), [options.model, options.size, str(options.threads), *options.set]
    curves: dict[str, list[float]] = {}
    for framework in ("smelt", *options.against.split(",")):
        worker = Worker(framework, job, known.get(framework))
        try:
            curves[framework] = worker.run(options.steps)["losses"]
        finally:
            worker.close()
    worst = 0.0
    for framework in curves:
        apart = [abs(a - b) for a, b in zip(curves["smelt"], curves[framework], strict=True)]
        worst = max(worst, *apart)
        first, last = curves[framework][0], curves[framework][-1]
        print(f"{framework:14} {first:.6f} → {last:.6f}, at most {max(apart):.2e} from smelt's")
    return int(worst > options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
