"""Parts of real networks, all right, for `smelt check`: what must be accepted for all sizes. Data for test_check."""

NETWORKS = {
    "resnet block stride": """
@assume("Y >= 1", "X >= 1")
def block(
    x: Shaped[Tensor, "f32[n=N, c=C, y=Y, x=X]"],
    a: Shaped[Tensor, "f32[o=2*C, c=C, y=3, x=3]"],
    b: Shaped[Tensor, "f32[o=2*C, c=2*C, y=3, x=3]"],
    s: Shaped[Tensor, "f32[o=2*C, c=C, y=1, x=1]"],
) -> Shaped[Tensor, "f32[n=N, c=2*C, y=(Y + 1)//2, x=(X + 1)//2]"]:
    pads = {"y": (1, 1), "x": (1, 1)}
    h = x.conv(a, "y x", strides=2, padding=pads).rename(o="c").relu()
    h = h.conv(b, "y x", padding="same").rename(o="c")
    return (h + x.conv(s, "y x", strides=2).rename(o="c")).relu()
""",
    "swin windows": """
def windows(x: Shaped[Tensor, "f32[b=B, y=Y, x=X, c=C]"]) -> Shaped[Tensor, "f32[b=B, y=Y, x=X, c=C]"]:
    y, w = x.size("y"), x.size("x")
    p = x.pad(y=(0, -y % 7), x=(0, -w % 7))
    parts = p.split("y", i=None, p=7).split("x", j=None, q=7).transpose("b i j p q c")
    tokens = parts.merge("p q", "t")
    mixed = tokens.softmax("t")
    back = mixed.split("t", p=7, q=7).transpose("b i p j q c").merge("i p", "y").merge("j q", "x")
    return back.slice(y=slice(0, y), x=slice(0, w))
""",
    "swin shift": """
@assume("Y >= 3", "X >= 3")
def shift(x: Shaped[Tensor, "f32[b=B, y=Y, x=X, c=C]"]) -> Shaped[Tensor, "f32[b=B, y=Y, x=X, c=C]"]:
    return x.roll("y", 3).roll("x", 3)
""",
    "patch merging": """
@assume("2 divides Y", "2 divides X")
def merge(
    x: Shaped[Tensor, "f32[b=B, y=Y, x=X, c=C]"],
    w: Shaped[Tensor, "f32[c=4*C, d=2*C]"],
) -> Shaped[Tensor, "f32[b=B, y=Y//2, x=X//2, d=2*C]"]:
    parts = [x[:, i::2, j::2] for i in range(2) for j in range(2)]
    return smelt.concatenate(parts, "c").dot(w, "c")
""",
    "kv cache attention": """
class Attn(smelt.Model):
    facts = ["H divides D", "S <= C"]
    wq: Shaped[Tensor, "f32[d=D, e=D]"]
    wk: Shaped[Tensor, "f32[d=D, e=D]"]
    wv: Shaped[Tensor, "f32[d=D, e=D]"]
    wo: Shaped[Tensor, "f32[e=D, d=D]"]
    def step(
        self,
        x: Shaped[Tensor, "[B, S, D]"],
        k: Shaped[Tensor, "f32[b=B, c=C, h=H, k=D//H]"],
        v: Shaped[Tensor, "f32[b=B, c=C, h=H, k=D//H]"],
        at: Shaped[Tensor, "i32[]"],
    ) -> tuple[
        Shaped[Tensor, "[B, S, D]"],
        Shaped[Tensor, "f32[b=B, c=C, h=H, k=D//H]"],
        Shaped[Tensor, "f32[b=B, c=C, h=H, k=D//H]"],
    ]:
        h = k.size("h")
        q, nk, nv = (x.dot(w, "d").split("e", h=h, k=None) for w in (self.wq, self.wk, self.wv))
        k = k.update(nk.rename(s="c"), c=at)
        v = v.update(nv.rename(s="c"), c=at)
        scores = q.dot(k, "k") / q.count("k", "f32").sqrt()
        rows = smelt.arange(x.size("s"), "s") + at
        cols = smelt.arange(k.size("c"), "c")
        scores = smelt.where(smelt.outer("-", rows, cols) >= 0, scores, -1e30)
        out = scores.softmax("c").dot(v, "c").transpose("b s h k").merge("h k", "e").dot(self.wo, "e")
        return out, k, v
""",
    "moe dense": """
def moe(
    x: Shaped[Tensor, "[T, D]"],
    gate: Shaped[Tensor, "[D, E]"],
    up: Shaped[Tensor, "[E, D, F]"],
    down: Shaped[Tensor, "[E, F, D]"],
) -> Shaped[Tensor, "[T, D]"]:
    p = x.dot(gate, "d").softmax("e")
    h = x.dot(up, "d").relu()
    y = h.dot(down, "f")
    return (y * p).sum("e").transpose("t d")
""",
    "moe topk": """
@assume("E >= 2")
def moe(
    x: Shaped[Tensor, "[T, D]"],
    gate: Shaped[Tensor, "[D, E]"],
    up: Shaped[Tensor, "[E, D, F]"],
) -> Shaped[Tensor, "f32[t=T, n=2, f=F]"]:
    w, i = x.dot(gate, "d").top_k(2, "e")
    chosen = up.take(i.rename(e="n"), "e")
    return x.dot(chosen, "d") * w.softmax("e").rename(e="n")
""",
    "lstm": """
class LSTM(smelt.Model):
    w: Shaped[Tensor, "f32[i=I, g=4*H]"]
    u: Shaped[Tensor, "f32[h=H, g=4*H]"]
    b: Shaped[Tensor, "f32[g=4*H]"]
    def forward(self, x: Shaped[Tensor, "f32[t=T, b=B, i=I]"]) -> Shaped[Tensor, "f32[t=T, b=B, h=H]"]:
        n = self.u.size("h")
        zero = smelt.zeros(smelt.Shape("f32", b=x.size("b"), h=n))
        def step(state, row):
            h, c = state
            gates = row.dot(self.w, "i") + h.dot(self.u, "h") + self.b
            i, f, g, o = (part.rename(g="h") for part in gates.chunk("g", 4))
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (h, c), h
        return smelt.scan(step, (zero, zero), x, "t")[1]
""",
    "unet padded": """
@assume("X >= 1")
def f(x: Shaped[Tensor, "f32[n=N, c=C, x=X]"]) -> Shaped[Tensor, "f32[n=N, c=C, x=X]"]:
    n = x.size("x")
    p = x.pad(x=(0, -n % 4))
    low = p.split("x", a=None, k=4).mean("k").rename(a="x")
    return (p + low.repeat("x", 4)).slice(x=slice(0, n))
""",
    "relative bias": """
def f(
    q: Shaped[Tensor, "[H, S, K]"],
    table: Shaped[Tensor, "f32[h=H, r=2*M + 1]"],
) -> Shaped[Tensor, "f32[h=H, s=S, t=S]"]:
    s = q.size("s")
    d = smelt.outer("-", smelt.arange(s, "s"), smelt.arange(s, "t"))
    m = (table.size("r") - 1) // 2
    return q.dot(q.rename(s="t"), "k") + table.take(d.clamp(-m, m) + m, "r")
""",
    "sliding chunks": """
@assume("W divides S", "W >= 1")
def f(x: Shaped[Tensor, "[S, D]"], w: Shaped[Tensor, "[W]"]) -> Shaped[Tensor, "[S, D]"]:
    blocks = x.split("s", n=None, w=w.size("w"))
    return (blocks * w).merge("n w", "s")
""",
    "beam": """
@assume("K <= V", "K >= 1", "V >= 1")
def f(
    score: Shaped[Tensor, "f32[b=B, k=K]"],
    logits: Shaped[Tensor, "f32[b=B, k=K, v=V]"],
) -> tuple[Shaped[Tensor, "f32[b=B, j=K]"], Shaped[Tensor, "i32[b=B, j=K]"]]:
    both = (logits.log_softmax("v") + score).merge("k v", "j")
    return both.top_k(score.size("k"), "j")
""",
    "rmsnorm swiglu": """
class Block(smelt.Model):
    g: Shaped[Tensor, "[D]"]
    w1: Shaped[Tensor, "[D, F]"]
    w3: Shaped[Tensor, "[D, F]"]
    w2: Shaped[Tensor, "[F, D]"]
    eps: float = 1e-5
    def forward(self, x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "[B, S, D]"]:
        n = x * (x.square().mean("d") + self.eps).rsqrt() * self.g
        return x + (n.dot(self.w1, "d").silu() * n.dot(self.w3, "d")).dot(self.w2, "f")
""",
    "conv stft": """
@assume("T >= 400")
def frames(x: Shaped[Tensor, "[B, T]"]) -> Shaped[Tensor, "f32[b=B, n=(T - 400)//160 + 1, k=400]"]:
    n = (x.size("t") - 400) // 160 + 1
    i = smelt.outer("+", smelt.arange(n, "n") * 160, smelt.arange(400, "k"))
    return x.take(i, "t")
""",
    "pixel shuffle": """
def f(x: Shaped[Tensor, "f32[b=B, c=4*C, y=Y, x=X]"]) -> Shaped[Tensor, "f32[b=B, c=C, y=2*Y, x=2*X]"]:
    return x.split("c", c=None, p=2, q=2).transpose("b c y p x q").merge("y p", "y").merge("x q", "x")
""",
    "batched outer loss": """
def contrastive(a: Shaped[Tensor, "f32[b=B, d=D]"], b: Shaped[Tensor, "f32[b=B, d=D]"]) -> Shaped[Tensor, "f32[]"]:
    logits = a.dot(b.rename(b="c"), "d")
    labels = smelt.arange(a.size("b"), "b")
    return -logits.log_softmax("c").take(labels, "c").mean()
""",
    "dynamic tail": """
def f(x: Shaped[Tensor, "[S, D]"]) -> Shaped[Tensor, "[S, D]"]:
    s = x.size("s")
    if s <= 128:
        return x * 2.0
    head, tail = x[:128], x[128:]
    return smelt.concatenate([head * 2.0, tail], "s")
""",
    "ceil/floor mix": """
def f(x: Shaped[Tensor, "[S]"]) -> Shaped[Tensor, "[S]"]:
    a, b = x[::2], x[1::2]
    n = b.size("s")
    both = smelt.stack([a[:n], b], "k", 1).merge("s k", "s")
    return smelt.concatenate([both, x[2 * n:]], "s")
""",
    "four chunks": """
@assume("4 divides D")
def f(x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "[B, D]"]:
    a, b = x.chunk("d", 2)
    c, d = a.chunk("d", 2)
    return smelt.concatenate([c, d, b], "d")
""",
    "causal conv": """
def f(
    x: Shaped[Tensor, "f32[b=B, c=C, t=T]"],
    w: Shaped[Tensor, "f32[o=C, c=C, t=4]"],
) -> Shaped[Tensor, "f32[b=B, o=C, t=T]"]:
    return x.conv(w, "t", padding={"t": (3, 0)})
""",
    "dilated same": """
def f(
    x: Shaped[Tensor, "f32[b=B, c=C, t=T]"],
    w: Shaped[Tensor, "f32[o=C, c=C, t=3]"],
) -> Shaped[Tensor, "f32[b=B, o=C, t=T]"]:
    return x.conv(w, "t", padding={"t": (2, 2)}, dilation=2)
""",
    "depthwise": """
def f(
    x: Shaped[Tensor, "f32[b=B, c=8, t=T]"],
    w: Shaped[Tensor, "f32[o=8, c=1, t=3]"],
) -> Shaped[Tensor, "f32[b=B, o=8, t=T]"]:
    return x.conv(w, "t", padding="same", groups=8)
""",
    "avg pool same": """
@assume("T >= 3")
def f(x: Shaped[Tensor, "f32[b=B, t=T]"]) -> Shaped[Tensor, "f32[b=B, t=T - 2]"]:
    return x.mean_pool({"t": 3}, {"t": 1})
""",
    "max pool same stride": """
@assume("T >= 1")
def f(x: Shaped[Tensor, "f32[b=B, t=T]"]) -> Shaped[Tensor, "f32[b=B, t=(T + 1)//2]"]:
    return x.max_pool({"t": 3}, {"t": 2}, padding={"t": (1, 1)})
""",
    "exact product sizes": """
@assume("D == H * K")
def f(x: Shaped[Tensor, "[B, D]"], y: Shaped[Tensor, "[H, K]"]) -> Shaped[Tensor, "[B, D]"]:
    return (x.split("d", h="H", k="K") * y).merge("h k", "d") + x
""",
    "heads by field": """
class A(smelt.Model):
    heads: int = 8
    w: Shaped[Tensor, "f32[d=512, e=512]"]
    def forward(self, x: Shaped[Tensor, "f32[b=B, s=S, d=512]"]) -> Shaped[Tensor, "f32[b=B, h=8, s=S, k=64]"]:
        return x.dot(self.w, "d").split("e", h=self.heads, k=None).transpose("b h s k")
""",
    "tied embedding": """
class LM(smelt.Model):
    table: Shaped[Tensor, "[V, D]"]
    def forward(self, ids: Shaped[Tensor, "i32[b=B, s=S]"]) -> Shaped[Tensor, "f32[b=B, s=S, v=V]"]:
        return self.table.take(ids, "v").dot(self.table, "d")
""",
}
