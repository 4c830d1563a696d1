"""Stand-ins until kernel.math has them."""
from smelt.kernel import math
def load(d,t): return t
def store(d,t): return t
def literal(v,d):
    if d.is_float:
        v=float(v)
        if v!=v: return '__builtin_nanf("")'
        if v in (float('inf'),-float('inf')): return '(-__builtin_inff())' if v<0 else '__builtin_inff()'
        return f"({v.hex()}{'f' if d.bits<64 else ''})"
    return f"({int(v)})"
def convert(t,s,d):
    return f"({t} != 0)" if d.kind=='bool' else f"(({math.register(d)}){t})"
def apply(f,args,ops,res):
    r=math.apply(f,args,ops,res)
    if r is None:
        if f in('LT','LE','GE','EQ','GT','NE'): return f"({args[0]} {dict(LT='<',LE='<=',GE='>=',EQ='==',GT='>',NE='!=')[f]} {args[1]})"
        if f=='clamp': return f"({args[1]} < {args[0]} ? {args[0]} : {args[1]} > {args[2]} ? {args[2]} : {args[1]})"
        from smelt.kernel.math.old import scalar
        s=scalar(f,res)
        if s: return s.format(*args,t=res.name)
    return r
for n in ('load','store','literal','convert'):
    if not hasattr(math,n): setattr(math,n,globals()[n])
