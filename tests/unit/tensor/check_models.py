"""More programs for `smelt check`, of the form of check_cases: models, records, numbers, what slips through easily."""

from __future__ import annotations

from tests.unit.tensor.check_cases import Wrong

MORE_WRONG = {
    "mean over batch kept": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "[B, D]"]:
    return x.mean("b")  # here
""",
        "f: the result: other axes than declared",
    ),
    "einsum-like wrong result order": Wrong(
        """
def f(
    q: Shaped[Tensor, "f32[b=B, s=S, d=D]"], k: Shaped[Tensor, "f32[b=B, t=T, d=D]"]
) -> Shaped[Tensor, "f32[s=S, b=B, t=T]"]:
    return q.dot(k, "d")  # here
""",
        "f: the result: other axes than declared",
    ),
    "dot two axes one differs": Wrong(
        """
def f(q: Shaped[Tensor, "f32[h=H, k=K, s=S]"], o: Shaped[Tensor, "f32[h=H, k=L, d=D]"]):
    return q.dot(o, "h k")  # here
""",
        'dot over "h", "k": the contracted axis "k" has different sizes, K and L',
        missing="K == L",
    ),
    "positional dot": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, D, 1]"], w: Shaped[Tensor, "f32[E, F]"]):
    return x.dot(w, (1, 0))  # here
""",
        "dot: axes with names are given by name",
    ),
    "stack wrong rank": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[S, D]"]):
    return smelt.stack([x, y], "n")  # here
""",
        'stack: only one of the operands has an axis "d"',
    ),
    "gather batch": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, v=V]"], i: Shaped[Tensor, "i32[b=C, n=N]"]):
    return x.take(i, "v")  # here
""",
        'take: "b" has different sizes, B and C',
        missing="B == C",
    ),
    "take_along extra axis": Wrong(
        """
def f(x: Shaped[Tensor, "f32[v=V]"], i: Shaped[Tensor, "i32[n=N, v=M]"]):
    return x.take_along(i, "v")  # here
""",
        "take_along: operand and indices have different axes",
    ),
    "scan different lengths": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], y: Shaped[Tensor, "f32[s=T]"]):
    return smelt.scan(lambda c, r: (c + r[0] * r[1], c), smelt.zeros("f32[]"), (x, y), "s")  # here
""",
        "scan: the inputs have different sizes along the axis",
        missing="T == S",
    ),
    "scan y has axis": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S, d=D]"], y: Shaped[Tensor, "f32[s=T]"]):
    return smelt.scan(lambda c, r: (c, y), smelt.zeros("f32[]"), x, "s")  # here
""",
        'scan: y has an axis "s" already',
    ),
    "while condition not scalar": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.while_loop(lambda y: y < 1.0, lambda y: y + 1.0, x)  # here
""",
        "while_loop: a condition is one boolean",
    ),
    "while returns fewer": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.while_loop(lambda y, z: y.sum() < 1.0, lambda y, z: (y,), x, x)  # here
""",
        "while_loop: the functions return different structures",
    ),
    "while returns one not tuple": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.while_loop(lambda y, z: y.sum() < 1.0, lambda y, z: y, x, x)  # here
""",
        "while_loop: the functions return different structures",
    ),
    "cond on vector": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.cond(x > 0.0, lambda: x, lambda: -x)  # here
""",
        "cond: a condition is one boolean",
    ),
    "cond structures": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], c: Shaped[Tensor, "i1[]"]):
    return smelt.cond(c, lambda: (x, x), lambda: x)  # here
""",
        "cond: the functions return different structures",
    ),
    "cond dtype": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], c: Shaped[Tensor, "i1[]"]):
    return smelt.cond(c, lambda: x, lambda: x.to("f16"))  # here
""",
        "cond: result 0 differs between the branches",
    ),
    "pad then split by another": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"]):
    return x.pad(s=(0, -x.size("s") % 8)).split("s", n=None, k=16)  # here
""",
        'split: 16 does not always divide "s" of size (-S) % 8 + S',
        missing="((-S) % 8 + S) % 16 == 0",
    ),
    "kv heads not dividing": Wrong(
        """
@assume("G >= 1")
def f(q: Shaped[Tensor, "f32[h=H, s=S, k=K]"], k: Shaped[Tensor, "f32[g=G, t=T, k=K]"]):
    return q.dot(k.repeat("g", q.size("h") // k.size("g")).rename(g="h"), "k")  # here
""",
        'dot over "k": the shared axis "h" has different sizes, H and G*(H//G)',
        missing="G divides H",
    ),
    "conv wrong kernel axis": Wrong(
        """
def f(x: Shaped[Tensor, "f32[n=N, c=3, y=Y, x=X]"], w: Shaped[Tensor, "f32[o=8, c=3, y=3, z=3]"]):
    return x.conv(w, "y x", padding="same")  # here
""",
        'conv: the kernel has no axis "x"',
    ),
    "conv groups": Wrong(
        """
def f(x: Shaped[Tensor, "f32[n=N, c=6, x=X]"], w: Shaped[Tensor, "f32[o=8, c=2, x=1]"]):
    return x.conv(w, "x", groups=4)  # here
""",
        'conv: the image has 6 features "c", the kernel takes 2 for each of 4 groups',
    ),
    "conv out size lie": Wrong(
        """
@assume("X >= 3")
def f(
    x: Shaped[Tensor, "f32[n=N, c=3, x=X]"], w: Shaped[Tensor, "f32[o=8, c=3, x=3]"]
) -> Shaped[Tensor, "f32[n=N, o=8, x=X//2]"]:
    return x.conv(w, "x", strides=2)  # here
""",
        "f: the result: a size is max((X + 1)//2 - 1, 0), not X//2",
        missing="(X + 1) % 2 == 0",
    ),
    "pool same stride symbolic": Wrong(
        """
def f(x: Shaped[Tensor, "f32[n=N, x=X]"]):
    return x.max_pool({"x": 3}, {"x": 2}, "same")  # here
""",
        'conv: padding "same" of "x" with stride 2 depends on its size X',
    ),
    "unet skip odd": Wrong(
        """
@assume("X >= 2")
def f(x: Shaped[Tensor, "f32[n=N, c=C, x=X]"]):
    low = x.max_pool({"x": 2})
    return smelt.concatenate([x, low.repeat("x", 2)], "c")  # here
""",
        'concatenate: "x" has different sizes, X and 2*(X//2)',
        missing="X % 2 == 0",
    ),
    "broadcast_to other size": Wrong(
        """
def f(x: Shaped[Tensor, "f32[d=D]"], y: Shaped[Tensor, "[B, E]"]) :
    return x.broadcast_to("f32[b=B, d=E]")  # here
""",
        'broadcast: "d" has size D, not E',
        missing="D == E",
    ),
    "rename missing": Wrong(
        """
def f(x: Shaped[Tensor, "f32[d=D]"]) :
    return x.rename(q="d")  # here
""",
        'rename: the operand has no axis "q"',
    ),
    "too many indices": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 3]"]):
    return x[0, 0, 0]  # here
""",
        "3 indices for 2 axes",
    ),
    "index out of a number": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 3]"]):
    return x[:, 3]  # here
""",
        "index 3 is not always inside axis 1 of size 3",
    ),
    "negative step": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return x[::-2]  # here
""",
        'slice: "s" needs a positive step, not -2',
    ),
    "bad sign of repeat": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[T]"]):
    return x.tile("s", y.size("t") - 1)  # here
""",
        "tile: T - 1 times may be negative",
        missing="T >= 1",
    ),
    "cumulative lie": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]) -> Shaped[Tensor, "f32[s=S+1]"]:
    return x.cumsum("s")  # here
""",
        "f: the result: a size is S, not S + 1",
    ),
    "facts contradictory use": Wrong(
        """
@assume("S >= 2")
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return x[2]  # here
""",
        'index 2 is not always inside "s" of size S',
        missing="S >= 3",
    ),
    "bad fact in model": Wrong(
        """
class M(smelt.Model):
    facts = ["D is even"]  # here
    w: Shaped[Tensor, "[D]"]
    def forward(self, x: Shaped[Tensor, "[D]"]):
        return x * self.w
""",
        "not a fact: a fact compares two sizes with ==, <=, >=, <, > or divides",
    ),
    "linear chained wrong": Wrong(
        """
from smelt import nn
class M(smelt.Model):
    a: nn.Linear = nn.Linear(d=8, f=16)
    b: nn.Linear = nn.Linear(f=32, c=4)
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=8]"]):
        return self.b(self.a(x))  # here
""",
        'dot over "f": the contracted axis "f" has different sizes, 16 and 32',
    ),
    "namedtuple result": Wrong(
        """
from typing import NamedTuple
class Out(NamedTuple):
    a: Shaped[Tensor, "[B]"]
    b: Shaped[Tensor, "[S]"]
def f(x: Shaped[Tensor, "[B, S]"]) -> Out:
    return Out(x.sum("s"), x.sum("s"))  # here
""",
        "f: the result b: other axes than declared",
    ),
    "dict result lie": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]) -> dict[str, Shaped[Tensor, "[B]"]]:
    return {"a": x.sum("s"), "b": x.sum("b")}  # here
""",
        "f: the result 'b': other axes than declared",
    ),
    "optional mask lies": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"], mask: Shaped[Tensor, "i1[s=T]"] | None = None):
    return x if mask is None else smelt.where(mask, x, 0.0)  # here
""",
        'where: the axis "s" has different sizes, S and T',
        missing="S == T",
    ),
    "list of tensors": Wrong(
        """
def f(xs: list[Shaped[Tensor, "[B, S]"]]):
    return smelt.concatenate(xs, "q")  # here
""",
        'concatenate: the left has no axis "q"',
    ),
    "dataclass model": Wrong(
        """
from dataclasses import dataclass
@dataclass
class M:
    w: Shaped[Tensor, "[D, F]"]
    scale: float = 1.0
    def __call__(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, F]"]:
        return x.dot(self.w, "f") * self.scale  # here
""",
        'dot over "f": the left operand has no such axis',
    ),
    "inherited": Wrong(
        """
class Base(smelt.Model):
    w: Shaped[Tensor, "[D, F]"]
    def forward(self, x: Shaped[Tensor, "[B, D]"]):
        return x.dot(self.w, "d") + self.extra  # here
class Child(Base):
    extra: Shaped[Tensor, "[D]"]
""",
        '+: neither operand has all axes of the other (only one has "d")',
    ),
    "staticmethod": Wrong(
        """
class M:
    @staticmethod
    def f(x: Shaped[Tensor, "[B, D]"]):
        return x.sum("q")  # here
""",
        'sum: the operand has no axis "q"',
    ),
    "property-like size mix": Wrong(
        """
def f(x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "f32[d=D]"]:
    return smelt.zeros(smelt.Shape("f32", d=x.size("b")))  # here
""",
        "f: the result: a size is B, not D",
        missing="B == D",
    ),
    "int minus size result": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], n: int) -> Shaped[Tensor, "f32[s=n]"]:
    return x[:n]  # here
""",
        "f: the result: a size is min(S, n), not n",
        missing="n <= S",
    ),
    "loop over tensors of list": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=4, d=D]"], y: Shaped[Tensor, "f32[e=D]"]):
    total = y
    for row in x:
        total = total + row  # here
    return total
""",
        '+: neither operand has all axes of the other (only one has "d")',
    ),
    "update wrong axis": Wrong(
        """
@assume("S <= C")
def write(cache: Shaped[Tensor, "f32[b=B, c=C, d=D]"], new: Shaped[Tensor, "f32[b=B, s=S, d=D]"]):
    return cache.update(new, c=0)  # here
""",
        'update: only one of the two has an axis "c"',
    ),
    "update other dim differs": Wrong(
        """
@assume("S <= C")
def write(cache: Shaped[Tensor, "f32[b=B, c=C, d=D]"], new: Shaped[Tensor, "f32[b=B, c=S, d=E]"]):
    return cache.update(new, c=0)  # here
""",
        'update: "d" has size E in the part and D in the operand',
        missing="E == D",
    ),
    "roll too far": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"]):
    return x.roll("s", 1)  # here
""",
        'roll: by 1, which is not always between 0 and the size S of "s"',
        missing="S >= 1",
    ),
    "merge no name": Wrong(
        """
def f(x: Shaped[Tensor, "[A, B]"]):
    return x.merge("a b")  # here
""",
        "merge: the merged axis needs a name",
    ),
    "flat reshape positional symbolic": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 4, 6]"]):
    return x.reshape(-1, 5)  # here
""",
        "reshape: the number of elements changes",
    ),
    "custom call sizes": Wrong(
        """
import numpy as np
def f(x: Shaped[Tensor, "f32[s=S]"]) -> Shaped[Tensor, "f32[s=S]"]:
    return smelt.custom_call(np.cumsum, "f32[t=S]", x)  # here
""",
        "f: the result: other axes than declared",
    ),
    "matmul 3d 2d transposed": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, S, 8]"], w: Shaped[Tensor, "f32[4, 8]"]):
    return x @ w  # here
""",
        "@: 8 columns meet 4 rows",
    ),
    "one in names broadcasting": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, s=1]"], y: Shaped[Tensor, "f32[b=B, s=S]"]):
    return x * y  # here
""",
        '*: the axis "s" has different sizes, 1 and S',
        missing="1 == S",
    ),
    "checked result lie": Wrong(
        """
@checked
def g(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=S]"]:
    return x[1:]  # here
def f(x: Shaped[Tensor, "[T]"]):
    return g(x.rename(t="s"))
""",
        "g: the result: a size is",
        fails="S >= 1",
    ),
    "checked fact": Wrong(
        """
@checked
@assume("2 divides N")
def halves(x: Shaped[Tensor, "f32[n=N]"]) -> Shaped[Tensor, "f32[n=N//2]"]:
    return x[::2] + x[1::2]
def f(x: Shaped[Tensor, "f32[n=3*S]"]):
    return halves(x)  # here
""",
        "halves: needs N % 2 == 0, which is S % 2 == 0 here",
        missing="S % 2 == 0",
    ),
    "split wrong product": Wrong(
        """
def f(x: Shaped[Tensor, "f32[d=12]"]):
    return x.split("d", a=3, b=5)  # here
""",
        'split: "d" has size 12, the parts give 3 * 5',
    ),
    "one hot float": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return x.one_hot(4, "v")  # here
""",
        "one_hot: indices must be integers",
    ),
    "argmax of empty": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return x.argmax("s")  # here
""",
        'argmax: "s" may be empty',
        missing="S >= 1",
    ),
    "elif branch only": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"]):
    s = x.size("s")
    if s == 0:
        return smelt.zeros("f32[]")
    elif s % 2 == 0:
        return (x[::2] + x[1::2]).sum()
    else:
        return (x[::2] * x[1::2]).sum()  # here
""",
        '*: the axis "s" has different sizes, (S + 1)//2 and S//2',
    ),
    "min/max of sizes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], y: Shaped[Tensor, "f32[s=T]"]):
    n = min(x.size("s"), y.size("s"))
    return x[:n] + y[:n] + x  # here
""",
        '+: the axis "s" has different sizes, T and S',
    ),
    "window slices": Wrong(
        """
@assume("S >= W", "W >= 1")
def f(x: Shaped[Tensor, "f32[s=S]"], w: Shaped[Tensor, "f32[w=W]"]):
    n = x.size("s") - w.size("w")
    return x[:n] + x[w.size("w") - 1:]  # here
""",
        '+: the axis "s" has different sizes, S - W and S - W + 1',
    ),
    "namedtuple argument": Wrong(
        """
from typing import NamedTuple
class State(NamedTuple):
    h: Shaped[Tensor, "[B, H]"]
    c: Shaped[Tensor, "[B, C]"]
def f(s: State):
    return s.h + s.c  # here
""",
        '+: neither operand has all axes of the other (only one has "c")',
    ),
    "dataclass result": Wrong(
        """
from dataclasses import dataclass
@dataclass
class Out:
    a: Shaped[Tensor, "[B]"]
def f(x: Shaped[Tensor, "[B, S]"]) -> Out:
    return Out(x.sum("b"))  # here
""",
        "f: the result a: other axes than declared",
    ),
    "window from end may be 0": Wrong(
        """
class M(smelt.Model):
    window: int
    w: Shaped[Tensor, "[D]"]
    facts = ["window <= S"]
    def forward(self, x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "f32[s=window, d=D]"]:
        return x[-self.window:] * self.w  # here
""",
        "M.forward: the result: a size is S + window, not window",
    ),
    "last by size": Wrong(
        """
def f(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "[D]"]:
    return x.slice(s=x.size("s") - 1)  # here
""",
        'index S - 1 is not always inside "s" of size S',
    ),
    "all but n": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[T]"]) -> Shaped[Tensor, "f32[s=S - T]"]:
    return x[:x.size("s") - y.size("t")]  # here
""",
        "f: the result: a size is max(2*S - T, 0), not S - T",
    ),
}

MORE_RIGHT = {
    "dot two axes": """
def f(q: Shaped[Tensor, "f32[h=H, k=K, s=S]"], o: Shaped[Tensor, "f32[h=H, k=K, d=D]"]) -> Shaped[Tensor, "[S, D]"]:
    return q.dot(o, "h k")
""",
    "take_along": """
def f(x: Shaped[Tensor, "f32[n=N, v=V]"], i: Shaped[Tensor, "i32[n=N, v=M]"]) -> Shaped[Tensor, "f32[n=N, v=M]"]:
    return x.take_along(i, "v")
""",
    "pad 16 split 8": """
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[n=(S + 15)//16*2, k=8]"]:
    return x.pad(s=(0, -x.size("s") % 16)).split("s", n=None, k=8)
""",
    "kv heads repeated": """
@assume("G divides H")
def f(
    q: Shaped[Tensor, "f32[h=H, s=S, k=K]"], k: Shaped[Tensor, "f32[g=G, t=T, k=K]"]
) -> Shaped[Tensor, "[H, S, T]"]:
    return q.dot(k.repeat("g", q.size("h") // k.size("g")).rename(g="h"), "k")
""",
    "grouped query": """
@assume("G divides H")
def f(
    q: Shaped[Tensor, "f32[h=H, s=S, k=K]"], k: Shaped[Tensor, "f32[g=G, t=T, k=K]"]
) -> Shaped[Tensor, "f32[g=G, r=H//G, s=S, t=T]"]:
    return q.split("h", g=k.size("g"), r=None).dot(k, "k")
""",
    "unet skip": """
@assume("2 divides X", "X >= 2")
def f(x: Shaped[Tensor, "f32[n=N, c=C, x=X]"]) -> Shaped[Tensor, "f32[n=N, c=2*C, x=X]"]:
    low = x.max_pool({"x": 2})
    return smelt.concatenate([x, low.repeat("x", 2)], "c")
""",
    "fact exact": """
@assume("S >= 3")
def f(x: Shaped[Tensor, "f32[s=S]"]) -> Shaped[Tensor, "f32[]"]:
    return x[2] + x[-3]
""",
    "linear chained": """
from smelt import nn
class M(smelt.Model):
    a: nn.Linear = nn.Linear(d=8, f=16)
    b: nn.Linear = nn.Linear(f=16, c=4)
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=8]"]):
        return self.b(self.a(x))
""",
    "constructor sizes": """
from smelt import nn
class M(smelt.Model):
    def __init__(self, wide: int, depth: int):
        self.layers = [nn.Linear(d=(wide, wide)) for _ in range(depth)]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=wide]"]):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
    "config dataclass": """
from dataclasses import dataclass
from smelt import nn
@dataclass
class Config:
    wide: int
    heads: int = 4
class M(smelt.Model):
    def __init__(self, config: Config):
        self.config = config
        self.up = nn.Linear(d=(config.wide, config.wide))
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=wide]"]):
        return self.up(x)
""",
    "dict results": """
def f(x: Shaped[Tensor, "[B, S]"]) -> dict[str, Tensor]:
    return {"a": x.sum("s"), "b": x}
""",
    "dataclass model frozen": """
from dataclasses import dataclass, field
@dataclass(frozen=True)
class M:
    w: Shaped[Tensor, "[D, F]"]
    names: list = field(default_factory=list)
    def __call__(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, F]"]:
        return x.dot(self.w, "d") * (1 + len(self.names))
""",
    "int slice with fact": """
@assume("n <= S")
def f(x: Shaped[Tensor, "[S]"], n: int) -> Shaped[Tensor, "f32[s=n]"]:
    return x[:n]
""",
    "loop over tensor rows": """
def f(x: Shaped[Tensor, "f32[s=4, d=D]"], y: Shaped[Tensor, "f32[d=D]"]) -> Shaped[Tensor, "[D]"]:
    total = y
    for row in x:
        total = total + row
    return total
""",
    "reshape -1 positional": """
def f(x: Shaped[Tensor, "f32[B, 4, 6]"]) -> Shaped[Tensor, "f32[4*B, 6]"]:
    return x.reshape(-1, 6)
""",
    "matmul 3d 2d": """
def f(x: Shaped[Tensor, "f32[B, S, 8]"], w: Shaped[Tensor, "f32[8, 4]"]) -> Shaped[Tensor, "f32[B, S, 4]"]:
    return x @ w
""",
    "min of sizes": """
def f(x: Shaped[Tensor, "f32[s=S]"], y: Shaped[Tensor, "f32[s=T]"]):
    n = min(x.size("s"), y.size("s"))
    return x[:n] + y[:n]
""",
    "kwonly and defaults": """
def f(x: Shaped[Tensor, "f32[s=S]"], *, eps: float = 1e-5, axis: str = "s") -> Shaped[Tensor, "f32[]"]:
    return (x + eps).sum(axis)
""",
    "window slices": """
@assume("S >= W", "W >= 1")
def f(x: Shaped[Tensor, "f32[s=S]"], w: Shaped[Tensor, "f32[w=W]"]) -> Shaped[Tensor, "f32[s=S - W + 1]"]:
    n = x.size("s") - w.size("w") + 1
    return x[:n] + x[w.size("w") - 1:]
""",
    "transposed conv": """
@assume("X >= 1")
def f(
    x: Shaped[Tensor, "f32[n=N, c=4, x=X]"], w: Shaped[Tensor, "f32[o=2, c=4, x=2]"]
) -> Shaped[Tensor, "f32[n=N, o=2, x=2*X]"]:
    return x.conv(w, "x", input_dilation=2, padding={"x": (1, 1)})
""",
    "alternating heads merge": """
def f(x: Shaped[Tensor, "f32[b=B, s=S, h=H, k=K]"]) -> Shaped[Tensor, "f32[b=B, s=S, d=H*K]"]:
    return x.merge("h k", "d")
""",
    "interleave": """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=2*S]"]:
    return smelt.stack([x, y], "n", 1).merge("s n", "s")
""",
    "dataclass result": """
from dataclasses import dataclass
@dataclass
class Out:
    a: Shaped[Tensor, "[B]"]
def f(x: Shaped[Tensor, "[B, S]"]) -> Out:
    return Out(x.sum("s"))
""",
    "model window": """
class M(smelt.Model):
    window: int
    w: Shaped[Tensor, "[D]"]
    facts = ["window <= S", "window >= 1"]
    def forward(self, x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "f32[s=window, d=D]"]:
        return x[-self.window:] * self.w
""",
    "last by size": """
@assume("S >= 1")
def f(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "[D]"]:
    return x.slice(s=x.size("s") - 1)
""",
    "all but n": """
@assume("T <= S")
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[T]"]) -> Shaped[Tensor, "f32[s=S - T]"]:
    return x[:x.size("s") - y.size("t")] + x[y.size("t"):]
""",
}
