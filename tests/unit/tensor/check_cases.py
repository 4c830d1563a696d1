"""Programs for `smelt check`: wrong ones with what must be said about them, and right ones. Data for test_check.

Each is the text of a module below the same header. In a wrong one the line with the mistake ends with `# here`.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER = """import smelt
from smelt import Shaped, Tensor, assume, checked
"""


@dataclass(frozen=True)
class Wrong:
    text: str
    message: str  # a part of it
    missing: str | None = None  # the fact that would prove it
    fails: str | None = None  # a Python expression that the counterexample satisfies
    remedy: str | None = None  # a part of it


WRONG = {
    # ---- those that users named ----
    "contraction over an axis that one side lacks": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S, D]"], w: Shaped[Tensor, "f32[F, F]"]):
    return x.dot(w, "d")  # here
""",
        'dot over "d": the right operand has no such axis',
        remedy=".named",
    ),
    "reshape that loses an axis": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "[B, D]"]:
    return x.reshape(b=x.size("b"), d=x.size("d"))  # here
""",
        "the number of elements changes",
        fails="B * S * D != B * D",
    ),
    "reshape that scrambles": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, s=S, d=H*K]"], y: Shaped[Tensor, "[H]"]) -> Shaped[Tensor, "[B, H, S, K]"]:
    return x.reshape(b="B", h="H", s="S", k="K")  # here
""",
        "would scramble elements",
        remedy="transpose",
    ),
    "heads without a fact": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S, D]"], bias: Shaped[Tensor, "[H]"]):
    h = bias.size("h")
    return x.split("d", h=h, k=x.size("d") // h)  # here
""",
        'split: "d" has size D',
        missing="H divides D",
        fails="H == 0 or D % H != 0",
    ),
    "broadcast both ways": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 1]"], y: Shaped[Tensor, "f32[1, B]"]):
    return x - y  # here
""",
        "both operands would have to be repeated",
    ),
    "a column minus a vector": Wrong(
        """
def loss(x: Shaped[Tensor, "f32[B, 1]"], y: Shaped[Tensor, "f32[B]"]):
    return ((x - y.unnamed()) ** 2).mean()  # here
""",
        "both operands would have to be repeated",
    ),
    "a named column minus a vector": Wrong(
        """
def loss(x: Shaped[Tensor, "f32[b=B, o=1]"], y: Shaped[Tensor, "f32[B]"]):
    return ((x - y.rename(b="o")) ** 2).mean()  # here
""",
        'the axis "o" has different sizes, 1 and B',
        fails="B != 1",
    ),
    "concatenation of different axes": Wrong(
        """
def f(x: Shaped[Tensor, "[S, D]"], y: Shaped[Tensor, "[T, E]"]):
    return smelt.concatenate([x, y], "s")  # here
""",
        'no axis "s"',
    ),
    "concatenation of different sizes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S, d=D]"], y: Shaped[Tensor, "f32[s=T, d=E]"]):
    return smelt.concatenate([x, y], "s")  # here
""",
        'concatenate: "d" has different sizes, D and E',
        fails="D != E",
    ),
    "even and odd elements": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"]):
    return x[::2] + x[1::2]  # here
""",
        "different sizes",
        missing="S % 2 == 0",
        fails="S % 2 == 1",
    ),
    "a cache write that may not fit": Wrong(
        """
def write(
    cache: Shaped[Tensor, "f32[b=B, c=C, d=D]"], new: Shaped[Tensor, "f32[b=B, c=S, d=D]"], at: Shaped[Tensor, "i32[]"]
):
    return cache.update(new, c=at)  # here
""",
        "do not always fit",
        missing="S <= C",
        fails="S > C",
    ),
    "the wrong axis of equal size": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, d=512]"], w: Shaped[Tensor, "f32[f=512, d=512]"]):
    return x @ w  # here
""",
        "different axes, even where their sizes are equal",
        remedy='.dot(w, "d")',
    ),
    "the wrong name of equal size": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, d=512]"], w: Shaped[Tensor, "f32[f=512, d=512]"]):
    return x.dot(w, "f")  # here
""",
        'dot over "f": the left operand has no such axis',
    ),
    "one branch only": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "f32[s=T]"]):
    if x.size("s") > 4:
        return x + y  # here
    return x
""",
        'the axis "s" has different sizes',
        fails="S >= 5 and S != T",
    ),
    # ---- annotations that lie ----
    "a result that lies about a size": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]) -> Shaped[Tensor, "f32[b=B, s=S]"]:
    return x.slice(s=slice(1, None))  # here
""",
        "the result: a size is",
        fails="S != max(S - 1, 0)",
    ),
    "a result that lies about its axes": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]) -> Shaped[Tensor, "[B, S]"]:
    return x.transpose("s b")  # here
""",
        "other axes than declared",
        remedy='.transpose("b s")',
    ),
    "a result that lies about its element type": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B]"]) -> Shaped[Tensor, "f32[b=B]"]:
    return x.to("bf16")  # here
""",
        "the element type is bf16",
    ),
    "a result that lies in a tuple": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]) -> tuple[Shaped[Tensor, "[B]"], Shaped[Tensor, "[S]"]]:
    y = x.sum("s")  # here
    return y, y
""",
        "the result 1: other axes than declared",
    ),
    "a result that is not a tensor": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]) -> Shaped[Tensor, "[B]"]:  # here
    return x.size("b")
""",
        "is not a tensor",
    ),
    "too few results": Wrong(
        """
def f(x: Shaped[Tensor, "[B]"]) -> tuple[Shaped[Tensor, "[B]"], Shaped[Tensor, "[B]"]]:  # here
    return (x,)
""",
        "2 are declared",
    ),
    "a field that lies": Wrong(
        """
class Layer:
    weight: Shaped[Tensor, "f32[d=D, f=F]"]
    bias: Shaped[Tensor, "f32[f=D]"]
    def forward(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, F]"]:
        return x.dot(self.weight, "d") + self.bias  # here
""",
        'the axis "f" has different sizes, F and D',
        fails="F != D",
    ),
    "a text that is no shape": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, d=]"]):  # here
    return x
""",
        "x: ",
    ),
    "an unknown element type": Wrong(
        """
def f(x: Shaped[Tensor, "f33[b=B]"]):  # here
    return x
""",
        "x: ",
    ),
    "a field that is no shape": Wrong(
        """
class Layer:
    weight: Shaped[Tensor, "f32[d=D f=F]"]  # here
    def forward(self, x: Shaped[Tensor, "[B, D]"]):
        return x.dot(self.weight, "d")
""",
        "weight: ",
    ),
    "an argument of a checked function": Wrong(
        """
@checked
def halves(x: Shaped[Tensor, "f32[n=2*N]"]) -> Shaped[Tensor, "f32[n=N]"]:
    return x[::2] + x[1::2]
def f(x: Shaped[Tensor, "f32[n=N]"]):
    return halves(x)  # here
""",
        "halves: x",
    ),
    # ---- elementwise ----
    "neither contains the other": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, s=S]"], y: Shaped[Tensor, "f32[b=B, t=S]"]):
    return x * y  # here
""",
        "neither operand has all axes",
        remedy='rename(t="s")',
    ),
    "keep=True does not broadcast": Wrong(
        """
def norm(x: Shaped[Tensor, "[B, D]"]):
    return x - x.mean("d", keep=True)  # here
""",
        'the axis "d" has different sizes',
        remedy="keep=True",
    ),
    "positional sizes that differ": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 3]"], y: Shaped[Tensor, "f32[4]"]):
    return x + y  # here
""",
        "different sizes, 3 and 4",
    ),
    "names meet no names": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, d=3]"], y: Shaped[Tensor, "f32[3]"]):
    return x + y  # here
""",
        "named and unnamed axes do not mix",
        remedy=".named",
    ),
    "where with three shapes": Wrong(
        """
def f(c: Shaped[Tensor, "i1[s=S]"], x: Shaped[Tensor, "f32[s=S]"], y: Shaped[Tensor, "f32[s=T]"]):
    return smelt.where(c, x, y)  # here
""",
        'the axis "s" has different sizes',
        fails="S != T",
    ),
    "a float condition": Wrong(
        """
def f(c: Shaped[Tensor, "f32[s=S]"], x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.where(c, x, 0.0)  # here
""",
        "where: not for f32",
    ),
    "sizes that differ by one": Wrong(
        """
def delta(x: Shaped[Tensor, "f32[s=S + 1]"]):
    return x[1:] - x  # here
""",
        'the axis "s" has different sizes, S and S + 1',
    ),
    "mixed element types": Wrong(
        """
def f(x: Shaped[Tensor, "bf16[s=S]"], y: Shaped[Tensor, "f16[s=S]"]):
    return x + y  # here
""",
        "do not mix",
    ),
    # ---- matrix multiplication ----
    "matmul of unequal sizes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 3]"], w: Shaped[Tensor, "f32[4, 5]"]):
    return x @ w  # here
""",
        "3 columns meet 4 rows",
    ),
    "contracted sizes that differ": Wrong(
        """
def f(x: Shaped[Tensor, "f32[b=B, d=D]"], w: Shaped[Tensor, "f32[d=E, f=F]"]):
    return x.dot(w, "d")  # here
""",
        'the contracted axis "d" has different sizes, D and E',
        fails="D != E",
    ),
    "batch sizes that differ": Wrong(
        """
def scores(q: Shaped[Tensor, "f32[b=B, s=S, d=D]"], k: Shaped[Tensor, "f32[b=C, t=T, d=D]"]):
    return q.dot(k, "d")  # here
""",
        'the shared axis "b" has different sizes',
        fails="B != C",
    ),
    "self attention without a rename": Wrong(
        """
def scores(x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "f32[b=B, s=S, t=S]"]:
    return x.dot(x, "d")  # here
""",
        "the result: of rank 2, not 3",
    ),
    "batched matmul of unequal batches": Wrong(
        """
def f(x: Shaped[Tensor, "f32[B, 2, 3]"], y: Shaped[Tensor, "f32[C, 3, 4]"]):
    return x @ y  # here
""",
        "batch axis 0 has different sizes",
        fails="B != C",
    ),
    # ---- floor division and strides ----
    "halves of an odd size": Wrong(
        """
def rotate(x: Shaped[Tensor, "[S, D]"]):
    a, b = x.chunk("d", 2)  # here
    return smelt.concatenate([b, a], "d")
""",
        "chunk: 2 does not always divide",
        missing="D % 2 == 0",
        fails="D % 2 == 1",
    ),
    "blocks without a fact": Wrong(
        """
def blocks(x: Shaped[Tensor, "[S]"]):
    return x.split("s", n=None, k=16)  # here
""",
        "split: 16 does not always divide",
        missing="S % 16 == 0",
        fails="S % 16 != 0",
    ),
    "floor division taken for exact": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "f32[s=S//2]"]):
    return x[::2] + y  # here
""",
        'the axis "s" has different sizes',
        fails="S % 2 == 1",
    ),
    "a strided slice of the wrong phase": Wrong(
        """
@assume("3 divides S")
def f(x: Shaped[Tensor, "[S]"]):
    return x[::3] + x[1::2]  # here
""",
        'the axis "s" has different sizes',
        fails="S % 3 == 0 and -(-S // 3) != S // 2",
    ),
    "the first of an empty axis": Wrong(
        """
def first(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "[D]"]:
    return x.slice(s=0)  # here
""",
        "is not always inside",
        missing="S >= 1",
        fails="S == 0",
    ),
    "top k of too few": Wrong(
        """
def f(x: Shaped[Tensor, "[B, V]"]):
    return x.top_k(50, "v")  # here
""",
        "top_k",
        missing="V >= 50",
        fails="V < 50",
    ),
    # ---- windows ----
    "a window larger than the image": Wrong(
        """
def f(x: Shaped[Tensor, "f32[n=N, c=3, y=Y, x=X]"], w: Shaped[Tensor, "f32[o=8, c=3, y=5, x=5]"]):
    return x.conv(w, "y x")  # here
""",
        "does not always fit",
        fails="0 < Y < 5 or 0 < X < 5",
    ),
    "the wrong number of features": Wrong(
        """
def f(x: Shaped[Tensor, "f32[n=N, c=4, x=X]"], w: Shaped[Tensor, "f32[o=8, c=3, x=1]"]):
    return x.conv(w, "x")  # here
""",
        "the image has 4 features",
    ),
    "a residual around a strided convolution": Wrong(
        """
@assume("X >= 3")
def f(x: Shaped[Tensor, "f32[n=N, c=C, x=X]"], w: Shaped[Tensor, "f32[o=C, c=C, x=3]"]):
    y = x.conv(w, "x", strides=2, padding={"x": (1, 1)}).rename(o="c")
    return x + y  # here
""",
        'the axis "x" has different sizes',
        fails="X != (X + 2 - 3) // 2 + 1",
    ),
    "pooling and its input": Wrong(
        """
@assume("X >= 2")
def f(x: Shaped[Tensor, "f32[n=N, x=X]"]) -> Shaped[Tensor, "f32[n=N, x=X//2 + 1]"]:
    return x.max_pool({"x": 2})  # here
""",
        "the result: a size is",
    ),
    # ---- control flow ----
    "a loop whose state grows": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"]):
    return smelt.while_loop(lambda y: y.sum() < 10.0, lambda y: smelt.concatenate([y, x], "s"), x)  # here
""",
        "changes a size from S to 2*S",
        fails="S != 2 * S",
    ),
    "a loop whose state changes its type": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    return smelt.fori_loop(3, lambda i, y: y.to("f64"), x)  # here
""",
        "changes its element type",
    ),
    "branches of different shapes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], c: Shaped[Tensor, "i1[]"]):
    return smelt.cond(c, lambda: x, lambda: x[1:])  # here
""",
        "differs between the branches",
        fails="S >= 1",
    ),
    "branches of different ranks": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], c: Shaped[Tensor, "i1[]"]):
    return smelt.cond(c, lambda: x, lambda: x.sum())  # here
""",
        "result 0 differs between the branches",
    ),
    "a scan whose carry changes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S, d=D]"], w: Shaped[Tensor, "f32[d=D, e=E]"]):
    start = smelt.zeros("f32[d=D]")
    return smelt.scan(lambda h, row: ((h + row).dot(w, "d"), h), start, x, "s")  # here
""",
        "carry 0 changes its axes",
    ),
    "a mistake in the body of a scan": Wrong(
        """
def step(h, row):
    return h + row.sum("q"), h  # here
def f(x: Shaped[Tensor, "f32[s=S, d=D]"]):
    return smelt.scan(step, smelt.zeros("f32[]"), x, "s")
""",
        'no axis "q"',
    ),
    "a branch on data": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"]):
    if x.sum() > 0.0:  # here
        return x
    return -x
""",
        "depends on its data",
        remedy="smelt.cond",
    ),
    # ---- looking up ----
    "a table looked up by floats": Wrong(
        """
def f(table: Shaped[Tensor, "[V, D]"], ids: Shaped[Tensor, "f32[b=B, s=S]"]):
    return table.take(ids, "v")  # here
""",
        "indices must be integers",
    ),
    "indices that share an axis by chance": Wrong(
        """
def f(table: Shaped[Tensor, "[V, D]"], ids: Shaped[Tensor, "i32[d=N]"]):
    return table.take(ids, "v")  # here
""",
        'take: "d" has different sizes',
        fails="D != N",
    ),
    "updates of other sizes": Wrong(
        """
def f(x: Shaped[Tensor, "[V, D]"], at: Shaped[Tensor, "i32[n=N]"], new: Shaped[Tensor, "f32[n=M, d=D]"]):
    return x.scatter(at, new, "v", "add")  # here
""",
        "of the updates has size",
        fails="N != M",
    ),
    "a window of data that is not there": Wrong(
        """
def f(x: Shaped[Tensor, "[S]"], at: Shaped[Tensor, "i32[]"]):
    return x.dynamic_slice(s=(at, 4))  # here
""",
        "4 elements are not always there",
        missing="S >= 4",
        fails="S < 4",
    ),
    # ---- moving ----
    "stacking different sizes": Wrong(
        """
def f(x: Shaped[Tensor, "f32[s=S]"], y: Shaped[Tensor, "f32[s=T]"]):
    return smelt.stack([x, y], "n")  # here
""",
        '"s" has different sizes',
        fails="S != T",
    ),
    "renaming onto a name that is taken": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]):
    return x.rename(b="s")  # here
""",
        "two axes would be called",
    ),
    "merging axes that are no neighbours": Wrong(
        """
def f(x: Shaped[Tensor, "[B, H, S, K]"]):
    return x.merge("h k", "d")  # here
""",
        "not adjacent",
        remedy="b h k s",
    ),
    "a transpose that forgets an axis": Wrong(
        """
def f(x: Shaped[Tensor, "[B, H, S]"]):
    return x.transpose("b s")  # here
""",
        "would be lost",
    ),
    "squeezing an axis that is not one": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]):
    return x.squeeze("s")  # here
""",
        "not 1",
        fails="S != 1",
    ),
    "a negative amount of padding": Wrong(
        """
def pad(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[T]"]):
    return x.pad(s=(0, y.size("t") - x.size("s")))  # here
""",
        "may be negative",
        missing="S <= T",
        fails="T < S",
    ),
    "an axis by number where names are": Wrong(
        """
def f(x: Shaped[Tensor, "[B, S]"]):
    return x.sum(1)  # here
""",
        "given by name",
        remedy='"s"',
    ),
    "a reshape by numbers": Wrong(
        """
def f(x: Shaped[Tensor, "f32[6, 4]"]):
    return x.reshape(4, 6)  # here
""",
        "would scramble",
    ),
    "a layer called with the wrong axis": Wrong(
        """
class Linear(smelt.Model):
    weight: Shaped[Tensor, "f32[d=D, f=F]"]
    def __call__(self, x: Tensor) -> Tensor:
        return x.dot(self.weight, "d")  # here
class Net(smelt.Model):
    first: Linear
    def forward(self, x: Shaped[Tensor, "f32[b=B, e=D]"]):
        return self.first(x)
""",
        'dot over "d": the left operand has no such axis',
    ),
    "a loop over a size": Wrong(
        """
def f(x: Shaped[Tensor, "[S, D]"]):
    rows = [x.slice(s=i) for i in range(x.size("s"))]  # here
    return smelt.stack(rows, "s")
""",
        "has no value before the function is called",
    ),
}

RIGHT = {
    # ---- those that users named ----
    "a residual block": """
class Block:
    up: Shaped[Tensor, "[D, F]"]
    down: Shaped[Tensor, "[F, D]"]
    def forward(self, x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "[B, S, D]"]:
        return x + x.dot(self.up, "d").gelu().dot(self.down, "f")
""",
    "heads with a fact": """
@assume("H divides D")
def heads(x: Shaped[Tensor, "[B, S, D]"], bias: Shaped[Tensor, "[H]"]) -> Shaped[Tensor, "[B, S, D]"]:
    split = x.split("d", h=bias.size("h"), k=None).transpose("b h s k") * bias
    return split.transpose("b s h k").merge("h k", "d") + x
""",
    "padding to a multiple": """
def blocks(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "f32[s=S, d=D]"]:
    parts = x.pad(s=(0, -x.size("s") % 8)).split("s", n=None, k=8)
    return x + parts.merge("n k", "s").slice(s=slice(0, x.size("s")))
""",
    "concatenation adds sizes": """
def f(x: Shaped[Tensor, "[S, D]"], y: Shaped[Tensor, "f32[s=T, d=D]"]) -> Shaped[Tensor, "f32[s=S + T, d=D]"]:
    return smelt.concatenate([x, y], "s")
""",
    "a cache write with a fact": """
@assume("S <= C")
def write(
    cache: Shaped[Tensor, "f32[b=B, c=C, d=D]"], new: Shaped[Tensor, "f32[b=B, c=S, d=D]"], at: Shaped[Tensor, "i32[]"]
) -> Shaped[Tensor, "[B, C, D]"]:
    return cache.update(new, c=at)
""",
    # ---- models ----
    "attention with a mask": """
class Attention:
    facts = ["H divides D"]
    qkv: Shaped[Tensor, "f32[d=D, e=3*D]"]
    out: Shaped[Tensor, "f32[d=D, o=D]"]
    heads: Shaped[Tensor, "[H]"]
    def forward(self, x: Shaped[Tensor, "[B, S, D]"], causal: bool) -> Shaped[Tensor, "f32[b=B, s=S, o=D]"]:
        parts = x.dot(self.qkv, "d").rename(e="d").chunk("d", 3)
        q, k, v = (part.split("d", h=self.heads.size("h"), k=None) for part in parts)
        scores = q.dot(k.rename(s="t"), "k")
        if causal:
            s, t = smelt.arange(x.size("s"), "s"), smelt.arange(x.size("s"), "t")
            scores = smelt.where(smelt.outer("-", s, t) >= 0, scores, -1e9)
        mixed = scores.softmax("t").dot(v.rename(s="t"), "t").transpose("b s h k")
        return mixed.merge("h k", "d").dot(self.out, "d")
""",
    "a model of layers": """
class Linear(smelt.Model):
    weight: Shaped[Tensor, "f32[d=D, f=D]"]
    bias: Shaped[Tensor, "f32[d=D]"] | None
    def __call__(self, x: Tensor) -> Tensor:
        y = x.dot(self.weight, "d").rename(f="d")
        return y if self.bias is None else y + self.bias
class Net(smelt.Model):
    layers: list[Linear]
    def forward(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, D]"]:
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
    "numbers of a class": """
class Heads(smelt.Model):
    heads: int
    facts = ["heads divides D"]
    scale: Shaped[Tensor, "[D]"]
    def forward(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, D]"]:
        return (x * self.scale).split("d", h=self.heads, k=None).softmax("k").merge("h k", "d")
""",
    "a model that is made in the module": """
class Net:
    def __init__(self, depth: int, wide: int) -> None:
        self.weights = [smelt.symbolic(smelt.Shape("f32", d=wide, e=wide)) for _ in range(depth)]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=64]"]) -> Shaped[Tensor, "f32[b=B, d=64]"]:
        for weight in self.weights:
            x = x.dot(weight, "d").rename(e="d")
        return x
net = Net(3, 64)
""",
    "layer norm": """
def norm(x: Shaped[Tensor, "[B, S, D]"], scale: Shaped[Tensor, "[D]"], eps: float) -> Shaped[Tensor, "[B, S, D]"]:
    return (x - x.mean("d")) * (x.var("d") + eps).rsqrt() * scale
""",
    "an optional mask": """
def f(x: Shaped[Tensor, "[B, S]"], mask: Shaped[Tensor, "i1[s=S]"] | None = None) -> Shaped[Tensor, "[B, S]"]:
    return x if mask is None else smelt.where(mask, x, 0.0)
""",
    # ---- sizes ----
    "even and odd elements with a fact": """
@assume("2 divides S")
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[s=S//2]"]:
    return x[::2] + x[1::2]
""",
    "branches on sizes": """
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "f32[]"]:
    if x.size("s") == 0:
        return smelt.zeros("f32[]")
    return x[0]
""",
    "differences": """
def f(x: Shaped[Tensor, "f32[s=S + 1]"]) -> Shaped[Tensor, "f32[s=S]"]:
    return x[1:] - x[:-1]
""",
    "patches of an image": """
@assume("16 divides Y", "16 divides X")
def patches(x: Shaped[Tensor, "f32[b=B, c=3, y=Y, x=X]"]) -> Shaped[Tensor, "f32[b=B, n=Y//16*(X//16), d=768]"]:
    parts = x.split("y", i=None, p=16).split("x", j=None, q=16).transpose("b i j c p q")
    return parts.merge("i j", "n").merge("c p q", "d")
""",
    "a strided convolution": """
@assume("X >= 3")
def f(
    x: Shaped[Tensor, "f32[n=N, c=4, x=X]"], w: Shaped[Tensor, "f32[o=8, c=4, x=3]"]
) -> Shaped[Tensor, "f32[n=N, o=8, x=(X - 3)//2 + 1]"]:
    return x.conv(w, "x", strides=2)
""",
    "same convolutions and a residual": """
def f(
    x: Shaped[Tensor, "f32[n=N, c=C, y=Y, x=X]"], w: Shaped[Tensor, "f32[o=C, c=C, y=3, x=3]"]
) -> Shaped[Tensor, "[N, C, Y, X]"]:
    return x + x.conv(w, "y x", padding="same").rename(o="c").relu()
""",
    "pooling": """
@assume("2 divides X", "X >= 2")
def f(x: Shaped[Tensor, "f32[n=N, x=X]"]) -> Shaped[Tensor, "f32[n=N, x=X//2]"]:
    return x.max_pool({"x": 2}) + x[:, ::2]
""",
    "down and up again": """
@assume("4 divides S")
def f(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "[S, D]"]:
    low = x.split("s", n=None, k=4).mean("k").rename(n="s")
    return x + low.repeat("s", 4)
""",
    "rotary positions": """
@assume("2 divides D")
def rotary(x: Shaped[Tensor, "[B, S, D]"], angles: Shaped[Tensor, "f32[s=S, d=D//2]"]) -> Shaped[Tensor, "[B, S, D]"]:
    a, b = x.chunk("d", 2)
    cos, sin = angles.cos(), angles.sin()
    return smelt.concatenate([a * cos - b * sin, b * cos + a * sin], "d")
""",
    "a cache and its length": """
@assume("S + T <= C")
def f(
    cache: Shaped[Tensor, "f32[c=C, d=D]"], old: Shaped[Tensor, "f32[s=S, d=D]"], new: Shaped[Tensor, "f32[s=T, d=D]"]
) -> Shaped[Tensor, "[C, D]"]:
    both = smelt.concatenate([old, new], "s")
    return cache.update(both.rename(s="c"), c=0)
""",
    "top k with a fact": """
@assume("V >= 50")
def f(x: Shaped[Tensor, "[B, V]"]) -> tuple[Shaped[Tensor, "f32[b=B, v=50]"], Shaped[Tensor, "i32[b=B, v=50]"]]:
    return x.top_k(50, "v")
""",
    # ---- control flow ----
    "a loop": """
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "[S]"]:
    return smelt.while_loop(lambda y: y.sum() < 10.0, lambda y: y * 2.0 + 1.0, x)
""",
    "a recurrent network": """
class Cell(smelt.Model):
    w: Shaped[Tensor, "[D, H]"]
    u: Shaped[Tensor, "f32[h=H, g=H]"]
    def forward(self, x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "f32[s=S, b=B, h=H]"]:
        start = smelt.zeros(smelt.Shape("f32", b=x.size("b"), h=self.w.size("h")))
        def step(h, row):
            h = (row.dot(self.w, "d") + h.dot(self.u, "h").rename(g="h")).tanh()
            return h, h
        return smelt.scan(step, start, x, "s")[1]
""",
    "branches of one shape": """
def f(x: Shaped[Tensor, "[S]"], c: Shaped[Tensor, "i1[]"]) -> Shaped[Tensor, "[S]"]:
    return smelt.cond(c, lambda: x * 2.0, lambda: -x)
""",
    # ---- looking up ----
    "an embedding": """
def f(table: Shaped[Tensor, "[V, D]"], ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Shaped[Tensor, "[B, S, D]"]:
    return table.take(ids, "v")
""",
    "one place of each row": """
def f(x: Shaped[Tensor, "[B, V]"], label: Shaped[Tensor, "i32[b=B]"]) -> Shaped[Tensor, "[B]"]:
    return -x.log_softmax("v").take(label, "v")
""",
    "counting": """
def f(ids: Shaped[Tensor, "i32[n=N]"], start: Shaped[Tensor, "i32[v=V]"]) -> Shaped[Tensor, "i32[v=V]"]:
    return start.scatter(ids, smelt.ones(smelt.Shape("i32", n=ids.size("n"))), "v", "add")
""",
    # ---- places instead of names ----
    "positional matmul": """
def f(
    x: Shaped[Tensor, "f32[B, 3]"], w: Shaped[Tensor, "f32[3, 4]"], b: Shaped[Tensor, "f32[4]"]
) -> Shaped[Tensor, "f32[B, 4]"]:
    return x @ w + b
""",
    "positional softmax": """
def f(x: Shaped[Tensor, "f32[B, 10]"]) -> Shaped[Tensor, "f32[B, 10]"]:
    y = (x - x.max(-1, keep=True)).exp()
    return y / y.sum(-1, keep=True)
""",
    "positional reshapes": """
def f(x: Shaped[Tensor, "f32[B, 12]"]) -> Shaped[Tensor, "f32[B, 12]"]:
    return x.reshape(-1, 3, 4).transpose(0, 2, 1).transpose(0, 2, 1).reshape(-1, 12)
""",
    # ---- moving ----
    "stack and take apart": """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "[S]"]:
    both = smelt.stack([x, y], "n")
    return both.slice(n=0) + both.slice(n=1) + both.sum("n")
""",
    "broadcast explicitly": """
def f(x: Shaped[Tensor, "[B, S]"], y: Shaped[Tensor, "[T]"]) -> Shaped[Tensor, "[B, S, T]"]:
    return smelt.outer("*", x, y)
""",
    "any number of arguments": """
def f(*xs: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "[S]"]:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total
""",
    "a checked function": """
@checked
def halves(x: Shaped[Tensor, "f32[n=2*N]"]) -> Shaped[Tensor, "f32[n=N]"]:
    return x[::2] + x[1::2]
def f(x: Shaped[Tensor, "f32[n=4*S]"]) -> Shaped[Tensor, "f32[n=S]"]:
    return halves(halves(x))
""",
    "a number as a size": """
def f(x: Shaped[Tensor, "[S]"], n: int) -> Shaped[Tensor, "f32[s=S*n]"]:
    return x.broadcast(k=n).transpose("s k").merge("s k", "s")
""",
    "sizes of their own": """
def f(x: Shaped[Tensor, "[S]"], y: Shaped[Tensor, "f32[s=T]"]) -> Shaped[Tensor, "f32[s=N]"]:
    return smelt.concatenate([x, y], "s")
""",
}
