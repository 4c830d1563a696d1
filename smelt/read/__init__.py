"""Files as programs and weights: one module per format. `smelt.read(path)` calls `smelt.model.read`."""

from smelt.callable_package import make_callable

make_callable(__name__, "smelt.model", "read")
