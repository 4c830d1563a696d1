"""Damaged copies of MLIR texts. Mutations know the tokens and the generic form, so that most of the damage is in what a
program says: sizes, types, attributes, operands, regions, symbols. Some damage is plain nonsense.

`mutate(text, choose)` gives a `Mutant`; the same seed gives the same one. Used by the tests here and by the verifier's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

Mutation = Callable[["Text", Random], "str | None"]

_QUANTIZED = r"!quant\.uniform<[^<>]*(?:<[^<>]*>)?[^<>]*>"
_TENSOR = rf"tensor<(?:(?:\d+|\?)x)*(?:{_QUANTIZED}|\w+(?:<\w+>)?)(?:, ?#\w[\w.]*<[^<>]*>)?>"
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<tensor>{_TENSOR})|(?P<dense>dense<[^>]*>)|(?P<string>\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<value>%[\w$.-]+(?:\#\d+)?)|(?P<symbol>@[\w$.]+)|(?P<caret>\^\w+)|(?P<sigil>[#!][\w$.]+)"
    r"|(?P<float>-?\d+\.\d*(?:[eE][-+]?\d+)?)|(?P<integer>-?\d+(?!x[\da-fA-F]))|(?P<hex>0x[\da-fA-F]+)"
    r"|(?P<word>[A-Za-z_][\w$.]*)|(?P<mark>->|::|.)",
    re.ASCII | re.DOTALL,
)
_PARTS = re.compile(rf"tensor<((?:(?:\d+|\?)x)*)({_QUANTIZED}|\w+(?:<\w+>)?)(.*)>", re.ASCII | re.DOTALL)
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|[ \t]*//[^\n]*')

ELEMENTS = [
    "i1",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "ui4",
    "ui8",
    "ui16",
    "ui32",
    "ui64",
    "bf16",
    "f16",
    "f32",
    "f64",
    "f8E4M3FN",
    "f8E5M2",
    "f8E8M0FNU",
    "f4E2M1FN",
    "index",
    "complex<f32>",
    "complex<f64>",
    "!quant.uniform<i8:f32,1.0:17>",
    "!quant.uniform<i32:f32,0.5>",
    "!quant.uniform<i8:f32:0,{0.5,0.25}>",
    "!quant.uniform<i8:f32,0.25:-3>",
    "!quant.uniform<i8:f32:1,{0.5,0.25,0.5}>",
    "!quant.uniform<i16:f16,0.5>",
    "i3",
    "f128",
    "none",
]
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 100)
HUGE_SIZES = (1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 10**30)
INTEGERS = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 4, 5, 7, 1 << 31, (1 << 63) - 1, 1 << 64)
OTHER_TYPES = (
    "!stablehlo.token",
    "tuple<>",
    "tuple<tensor<f32>, tensor<2xi32>>",
    "tensor<*xf32>",
    "tensor<f32>",
    "tensor<i1>",
    "tensor<2xf32>",
    "tensor<?xf32>",
    "tensor<?x?xf32>",
    "tensor<?xf32, #stablehlo.bounds<4>>",
    "!stablehlo.future<tensor<2xf32>>",
    "f32",
    "i32",
    "index",
    "vector<2xf32>",
    "memref<2xf32>",
    "() -> ()",
    "!unknown.type",
    "",
)
VALUES = (
    "true",
    "false",
    "unit",
    "1 : i64",
    "-1 : i64",
    "2 : i32",
    "1.0 : f32",
    '"text"',
    "@main",
    "[]",
    "[1, 2]",
    '["a"]',
    "{}",
    "f32",
    "tensor<2xf32>",
    "array<i64>",
    "array<i64: 0>",
    "array<i64: 0, 1>",
    "array<i32: 1>",
    "array<i1: true>",
    "dense<0> : tensor<i64>",
    "dense<1> : tensor<2xi64>",
    "dense<1> : tensor<1x2xi64>",
    "dense<[[0, 1]]> : tensor<1x2xi64>",
    "#stablehlo.channel_handle<handle = 1, type = 0>",
    "#stablehlo<comparison_direction LT>",
    "#stablehlo<precision HIGH>",
    "#stablehlo.dot<>",
    "#unknown.attribute<1>",
    "affine_map<(d0) -> (d0)>",
)
WORDS = (
    ("EQ", "NE", "GE", "GT", "LE", "LT"),
    ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED", "NOTYPE"),
    ("DEFAULT", "HIGH", "HIGHEST"),
    ("FFT", "IFFT", "RFFT", "IRFFT"),
    ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT", "TRANSPOSE_INVALID"),
    ("THREE_FRY", "PHILOX", "DEFAULT"),
    ("UNIFORM", "NORMAL"),
    ("true", "false"),
)
ALIKE = (
    "abs cbrt ceil cosine count_leading_zeros exponential exponential_minus_one floor imag is_finite log log_plus_one "
    "logistic negate not optimization_barrier popcnt real reduce_precision round_nearest_afz round_nearest_even rsqrt "
    "sign sine sqrt tan tanh bitcast_convert convert reshape transpose broadcast_in_dim uniform_quantize "
    "uniform_dequantize cholesky reverse slice",
    "add and atan2 complex divide maximum minimum multiply or power remainder shift_left shift_right_arithmetic "
    "shift_right_logical subtract xor compare concatenate dot dot_general reshape pad dynamic_reshape",
    "select clamp dynamic_update_slice scatter dynamic_slice gather",
    "reduce sort map reduce_window all_reduce while case if scatter select_and_scatter",
    "all_gather all_reduce all_to_all collective_permute collective_broadcast reduce_scatter cross-replica-sum",
)
VALID = (
    "size of all such types",
    "element of all such types",
    "rank of all such types",
    "encoding of all such types",
    "element everywhere",
    "size everywhere",
    "type of a value",
    "integer",
    "list",
    "operand",
    "swap operands",
    "op",
)  # what often leaves a program valid
NONSENSE = ("{", "}", "(", ")", "<", ">", "[", "]", ",", ":", "=", "->", "%", "#", "!", '"', "\\", "\0", "é", "/", "\r")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damaged text and the names of what was done to it."""

    text: str
    done: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """An op in generic form: which tokens are its name, its operands, their types and its results' types."""

    name: int
    operands: list[int]
    types: list[int]
    results: list[int]


class Text:
    """A text cut into tokens; joining them gives the text again."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.kinds: list[str] = []
        for match in _TOKEN.finditer(text):
            self.tokens.append(match[0])
            self.kinds.append(match.lastgroup or "")

    def places(self, *kinds: str) -> list[int]:
        return [i for i, kind in enumerate(self.kinds) if kind in kinds]

    def with_(self, changes: dict[int, str]) -> str:
        """The text with some tokens replaced; an empty token is left out."""
        return "".join(changes.get(i, token) for i, token in enumerate(self.tokens))

    def after(self, i: int) -> int:
        """The next token that is no space; past the last one, their number."""
        i += 1
        while i < len(self.tokens) and self.kinds[i] == "space":
            i += 1
        return i

    def token(self, i: int) -> str:
        return self.tokens[i] if 0 <= i < len(self.tokens) else ""

    def closing(self, i: int) -> int:
        """The bracket that closes the one at `i`; the last token where none does."""
        depth = 0
        for at in range(i, len(self.tokens)):
            token = self.tokens[at]
            depth += (token in ("(", "[", "{", "<")) - (token in (")", "]", "}", ">"))
            if depth <= 0:
                return at
        return len(self.tokens) - 1

    def items(self, opening: int) -> list[tuple[int, int]]:
        """The stretches of tokens between the commas inside a bracket."""
        end, stretches, at = self.closing(opening), [], self.after(opening)
        begin = at
        while at < end:
            if self.tokens[at] in ("(", "[", "{", "<"):
                at = self.closing(at)
            elif self.tokens[at] == ",":
                stretches.append((begin, at))
                begin = self.after(at)
            at = self.after(at)
        return [*stretches, (begin, end)] if begin < end else stretches

    def statements(self) -> list[Statement]:
        """Every op in generic form: `"name"(%a, %b) … : (type, type) -> type`."""
        found = []
        for i, kind in enumerate(self.kinds):
            opening = self.after(i)
            if kind == "string" and "." in self.tokens[i] and self.token(opening) == "(":
                at = self.after(self.closing(opening))
                while self.token(at) in ("<", "(", "{"):
                    at = self.after(self.closing(at))
                types = self.after(at)
                if self.token(at) != ":" or self.token(types) != "(":
                    continue
                results = self.after(self.after(self.closing(types)))
                if results < len(self.tokens):
                    operands = [a for a, _ in self.items(opening)]
                    inputs = [a for a, _ in self.items(types)]
                    found.append(Statement(i, operands, inputs, self._results(results)))
        return found

    def _results(self, at: int) -> list[int]:
        return [a for a, _ in self.items(at)] if self.token(at) == "(" else [at]


def strip_comments(text: str) -> str:
    """A text without its comments, which are no use to damage."""
    return _COMMENT.sub(lambda match: match[1] or "", text)


def mutate(text: str, choose: Random, *, only: Sequence[str] = (), most: int = 2) -> Mutant:
    """A copy with one change, sometimes more. Names of mutations that found nothing to do are not told."""
    done: list[str] = []
    wanted = 1 if choose.random() < 0.7 else choose.randint(1, most)
    names = list(only or MUTATIONS)
    for _ in range(40):
        name = choose.choice(names)
        changed = MUTATIONS[name](Text(text), choose)
        if changed is not None and changed != text:
            text = changed
            done.append(name)
            if len(done) == wanted:
                break
    return Mutant(text, tuple(done))


# ---- types ----


def _parts(tensor: str) -> tuple[list[str], str, str]:
    match = _PARTS.fullmatch(tensor)
    assert match is not None, tensor
    return match[1].split("x")[:-1], match[2], match[3]


def _joined(sizes: Sequence[str], element: str, rest: str = "") -> str:
    return f"tensor<{''.join(size + 'x' for size in sizes)}{element}{rest}>"


def _new_size(size: str, choose: Random) -> str:
    if choose.random() < 0.08:
        return str(choose.choice(HUGE_SIZES))
    if choose.random() < 0.08:
        return "?"
    if size.isdigit() and choose.random() < 0.5:
        return str(max(0, int(size) + choose.choice((-1, 1))))
    return str(choose.choice(SIZES))


def _other_size(tensor: str, choose: Random) -> str | None:
    sizes, element, rest = _parts(tensor)
    if not sizes:
        return None
    at = choose.randrange(len(sizes))
    sizes[at] = _new_size(sizes[at], choose)
    return _joined(sizes, element, rest)


def _other_element(tensor: str, choose: Random) -> str:
    sizes, _, rest = _parts(tensor)
    return _joined(sizes, choose.choice(ELEMENTS), rest)


def _other_rank(tensor: str, choose: Random) -> str:
    sizes, element, rest = _parts(tensor)
    if sizes and choose.random() < 0.5:
        sizes.pop(choose.randrange(len(sizes)))
    elif choose.random() < 0.97:
        sizes.insert(choose.randint(0, len(sizes)), str(choose.choice(SIZES)))
    else:
        sizes = ["1"] * choose.choice((30, 64, 65, 300))
    return _joined(sizes, element, rest)


def _other_order(tensor: str, choose: Random) -> str:
    sizes, element, rest = _parts(tensor)
    choose.shuffle(sizes)
    return _joined(sizes, element, rest)


def _other_type(tensor: str, choose: Random) -> str:
    return choose.choice(OTHER_TYPES)


def _other_encoding(tensor: str, choose: Random) -> str:
    sizes, element, _ = _parts(tensor)
    if sizes and choose.random() < 0.7:
        sizes[choose.randrange(len(sizes))] = "?"
    words = [str(choose.choice(SIZES)) if size == "?" and choose.random() < 0.9 else "?" for size in sizes]
    if choose.random() < 0.3:
        words.append("4")
    kind = choose.choice(("#stablehlo.bounds", "#stablehlo.type_extensions", "#smelt.sizes", "#unknown.encoding"))
    return _joined(sizes, element, f", {kind}<{', '.join(words)}>")


TypeChange = Callable[[str, Random], "str | None"]


def _one_type(change: TypeChange) -> Mutation:
    """Change one occurrence of a type."""

    def run(text: Text, choose: Random) -> str | None:
        places = text.places("tensor")
        if not places:
            return None
        at = choose.choice(places)
        new = change(text.tokens[at], choose)
        return None if new is None else text.with_({at: new})

    return run


def _all_types(change: TypeChange) -> Mutation:
    """Change a type wherever it occurs."""

    def run(text: Text, choose: Random) -> str | None:
        places = text.places("tensor")
        if not places:
            return None
        old = text.tokens[choose.choice(places)]
        new = change(old, choose)
        return None if new is None else text.with_({i: new for i in places if text.tokens[i] == old})

    return run


def _element_everywhere(text: Text, choose: Random) -> str | None:
    """Change an element type in every tensor that has it: where the ops do not care, the program stays valid."""
    places = text.places("tensor")
    if not places:
        return None
    old = _parts(text.tokens[choose.choice(places)])[1]
    new = choose.choice(ELEMENTS)
    changes = {}
    for i in places:
        sizes, element, rest = _parts(text.tokens[i])
        if element == old:
            changes[i] = _joined(sizes, new, rest)
    return text.with_(changes)


def _size_everywhere(text: Text, choose: Random) -> str | None:
    """Change a size in every tensor that has it."""
    places = text.places("tensor")
    sizes = [size for i in places for size in _parts(text.tokens[i])[0]]
    if not sizes:
        return None
    old = choose.choice(sizes)
    new = _new_size(old, choose)
    changes = {}
    for i in places:
        own, element, rest = _parts(text.tokens[i])
        changes[i] = _joined([new if size == old else size for size in own], element, rest)
    return text.with_(changes)


def _retype_value(text: Text, choose: Random) -> str | None:
    """Change the type of an argument where it is defined and where ops in generic form use it."""
    named = [i for i in text.places("value") if text.token(text.after(i)) == ":"]
    named = [i for i in named if text.kinds[text.after(text.after(i)) : text.after(text.after(i)) + 1] == ["tensor"]]
    if not named:
        return None
    at = choose.choice(named)
    place = text.after(text.after(at))
    change = choose.choice((_other_size, _other_element, _other_rank, _other_order, _other_type))
    new = change(text.tokens[place], choose)
    if new is None:
        return None
    changes = {place: new}
    for statement in text.statements():
        for operand, type in zip(statement.operands, statement.types, strict=False):
            if text.tokens[operand] == text.tokens[at]:
                changes[type] = new
    return text.with_(changes)


# ---- attributes ----


def _integer(text: Text, choose: Random) -> str | None:
    """Change an integer outside types and literals."""
    places = text.places("integer")
    if not places:
        return None
    at = choose.choice(places)
    old = int(text.tokens[at][:30])
    new = old + choose.choice((-1, 1)) if choose.random() < 0.5 else choose.choice(INTEGERS)
    return text.with_({at: str(new)})


def _list(text: Text, choose: Random) -> str | None:
    """Drop, repeat, add or shuffle the items of a list."""
    places = [
        i
        for i, token in enumerate(text.tokens)
        if token == "[" or (token == ":" and text.token(i - 1) in ("i64", "i1", "i32") and text.token(i - 2) == "<")
    ]
    if not places:
        return None
    at = choose.choice(places)
    if text.tokens[at] == "[":
        opening, first, end = at, text.after(at), text.closing(at)
    else:
        opening, first, end = at - 2, text.after(at), text.closing(at - 2)
    stretches = [(max(a, first), b) for a, b in text.items(opening)]
    items = ["".join(text.tokens[a:b]).strip() for a, b in stretches]
    spare = choose.choice(items) if items and choose.random() < 0.6 else str(choose.choice(INTEGERS))
    match choose.randrange(6):
        case 0 if items:
            items.pop(choose.randrange(len(items)))
        case 1:
            items.insert(choose.randint(0, len(items)), spare)
        case 2:
            choose.shuffle(items)
        case 3 if items:
            items[choose.randrange(len(items))] = spare
        case 4:
            items = []
        case _:
            items = items * choose.choice((2, 3, 100))
    head = text.with_(dict.fromkeys(range(first, len(text.tokens)), ""))
    tail = "".join(text.tokens[end:])
    if text.tokens[at] == ":" and not items:
        head = head.rstrip().removesuffix(":")
    return head + ", ".join(items) + tail


def _entries(text: Text) -> list[tuple[int, int]]:
    """`name = value` in dictionaries and in records, as stretches of tokens."""
    found = []
    for i, token in enumerate(text.tokens):
        if token in ("{", "<"):
            for a, b in text.items(i):
                if text.kinds[a] in ("word", "string") and (text.token(text.after(a)) in ("=", ",", "}", ">")):
                    found.append((a, b))
    return found


def _drop_attribute(text: Text, choose: Random) -> str | None:
    entries = _entries(text)
    if not entries:
        return None
    a, b = choose.choice(entries)
    if text.token(b) == ",":
        b += 1
    else:
        before = a - 1
        while before >= 0 and text.kinds[before] == "space":
            before -= 1
        a = before if text.token(before) == "," else a
    return text.with_(dict.fromkeys(range(a, b), ""))


def _attribute_value(text: Text, choose: Random) -> str | None:
    """Another value, usually of another kind."""
    entries = [(a, b) for a, b in _entries(text) if text.token(text.after(a)) == "="]
    if not entries:
        return None
    a, b = choose.choice(entries)
    values = [*VALUES, *("".join(text.tokens[text.after(text.after(x)) : y]) for x, y in entries)]
    changes = dict.fromkeys(range(text.after(text.after(a)), b), "")
    changes[text.after(text.after(a))] = choose.choice(values)
    return text.with_(changes)


def _repeat_attribute(text: Text, choose: Random) -> str | None:
    entries = _entries(text)
    if not entries:
        return None
    a, b = choose.choice(entries)
    entry = "".join(text.tokens[a:b]).rstrip()
    if choose.random() < 0.5:
        entry = entry.replace(text.tokens[a], choose.choice(("extra", "dimension", "tests.attribute", '"odd name"')), 1)
    return text.with_({a: f"{entry}, {text.tokens[a]}"})


def _word(text: Text, choose: Random) -> str | None:
    """Another word of an enumeration."""
    places = [(i, words) for i in text.places("word") for words in WORDS if text.tokens[i] in words]
    if not places:
        return None
    at, words = choose.choice(places)
    return text.with_({at: choose.choice(words) if choose.random() < 0.9 else choose.choice(("NONE", "lt", "Eq"))})


def _literal(text: Text, choose: Random) -> str | None:
    """Another literal, or one that does not fit its type."""
    places = text.places("dense")
    if not places:
        return None
    at = choose.choice(places)
    old = text.tokens[at][6:-1]
    numbers = list(re.finditer(r"-?\d+", old)) if len(old) < 5000 else []
    options = [
        "", "0", "-1", "1.0", "true", "[]", "[0]", "[[0]]", "[0, 1]", "[[0, 1], [2]]", '"0x"', '"0x0"', '"0x00"',
        '"0x0000803F"', '"0xZZ"', '"text"', "(1.0, 2.0)", "[(1.0, 2.0)]", "0x7FC00000", "0xFFFFFFFFFFFFFFFFFF",
        "9" * 30, "1e5", "1.0e400", "-", "nan", "inf", "[" * 300, "dense<0>",
    ]  # fmt: skip
    if numbers and choose.random() < 0.6:
        match = choose.choice(numbers)
        new = old[: match.start()] + str(choose.choice(INTEGERS)) + old[match.end() :]
    elif old.startswith("[") and choose.random() < 0.4:
        new = f"[{old}]" if choose.random() < 0.5 else old[1:-1]
    else:
        new = choose.choice(options)
    return text.with_({at: f"dense<{new}>"})


# ---- operands, results, regions, symbols ----


def _operand(text: Text, choose: Random) -> str | None:
    """Use another value, maybe one that is not in sight."""
    values = text.places("value")
    uses = [i for i in values if text.token(text.after(i)) not in ("=", ":")] or values
    if not uses:
        return None
    names = [*sorted({text.tokens[i] for i in values}), "%undefined", "%0#1", "%0#7"]
    return text.with_({choose.choice(uses): choose.choice(names)})


def _swap_operands(text: Text, choose: Random) -> str | None:
    """Swap two neighbours `%a, %b`, types left as they are."""
    pairs = []
    for i in text.places("value"):
        comma = text.after(i)
        other = text.after(comma)
        if text.token(comma) == "," and other < len(text.tokens) and text.kinds[other] == "value":
            pairs.append((i, other))
    if not pairs:
        return None
    a, b = choose.choice(pairs)
    return text.with_({a: text.tokens[b], b: text.tokens[a]})


def _generic_operands(text: Text, choose: Random) -> str | None:
    """Drop, repeat or swap operands of an op in generic form together with their types."""
    statements = [each for each in text.statements() if len(each.operands) == len(each.types)]
    if not statements:
        return None
    statement = choose.choice(statements)
    pairs = [(text.tokens[a], text.tokens[b]) for a, b in zip(statement.operands, statement.types, strict=True)]
    opening, types = text.after(statement.name), 0
    match choose.randrange(3):
        case 0 if pairs:
            pairs.pop(choose.randrange(len(pairs)))
        case 1 if pairs:
            pairs.insert(choose.randint(0, len(pairs)), choose.choice(pairs))
        case _:
            choose.shuffle(pairs)
    if not statement.types:
        return None
    types = statement.types[0] - 1
    changes = dict.fromkeys(range(opening + 1, text.closing(opening)), "")
    changes[opening] = "(" + ", ".join(operand for operand, _ in pairs)
    inside = range(types + 1, text.closing(types))
    changes |= dict.fromkeys(inside, "")
    changes[types] = "(" + ", ".join(type for _, type in pairs)
    return text.with_(changes)


def _generic_results(text: Text, choose: Random) -> str | None:
    """Drop or repeat the result types of an op in generic form."""
    statements = [each for each in text.statements() if each.results]
    if not statements:
        return None
    statement = choose.choice(statements)
    at = choose.choice(statement.results)
    if len(statement.results) == 1 and text.token(at - 1) != "(":
        return text.with_({at: choose.choice(("()", f"({text.tokens[at]}, {text.tokens[at]})"))})
    return text.with_({at: f"{text.tokens[at]}, {text.tokens[at]}"})


def _result_count(text: Text, choose: Random) -> str | None:
    """`%0:2 =` for `%0 =` and the like."""
    places = [i for i in text.places("value") if text.token(text.after(i)) == "="]
    places += [i for i in text.places("value") if text.token(i + 1) == ":" and text.kinds[i + 2 : i + 3] == ["integer"]]
    if not places:
        return None
    at = choose.choice(places)
    name = text.tokens[at]
    if text.token(i := at + 1) == ":":
        return text.with_({i + 1: str(choose.choice((0, 1, 2, 3, 4, 99999999)))})
    return text.with_({at: choose.choice((f"{name}:2", f"{name}:0", f"{name}, %other", f"{name}:1000000"))})


def _op_name(text: Text, choose: Random) -> str | None:
    """Another op, usually one with as many operands."""
    places = [i for i in text.places("string", "word") if re.match(r'"?(stablehlo|chlo)\.\w+"?$', text.tokens[i])]
    if not places:
        return None
    at = choose.choice(places)
    dialect, _, name = text.tokens[at].strip('"').partition(".")
    groups = [group.split() for group in ALIKE if name in group.split()] or [group.split() for group in ALIKE]
    new = (
        choose.choice(choose.choice(groups))
        if choose.random() < 0.9
        else choose.choice(("nonsense", "return", "add.x"))
    )
    quote = '"' if text.kinds[at] == "string" else ""
    return text.with_({at: f"{quote}{dialect}.{new}{quote}"})


def _line(text: Text, choose: Random) -> str | None:
    """Drop, repeat or move a line."""
    lines = "".join(text.tokens).split("\n")
    at = choose.randrange(len(lines))
    line = lines[at]
    match choose.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, line)
        case _:
            del lines[at]
            lines.insert(choose.randint(0, len(lines)), line)
    return "\n".join(lines)


def _return(text: Text, choose: Random) -> str | None:
    """Drop a return, or change what it returns."""
    lines = "".join(text.tokens).split("\n")
    places = [i for i, line in enumerate(lines) if re.search(r"\breturn\b", line)]
    if not places:
        return None
    at = choose.choice(places)
    match choose.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines[at] = re.sub(r"\breturn\b.*", "return", lines[at])
        case 2:
            lines[at] = lines[at].replace("stablehlo.return", choose.choice(("return", "func.return", "sdy.return")))
        case _:
            lines[at] = re.sub(r"(%[\w#]+)(.*?)(tensor<[^>]*>+)", r"\1, \1\2\3, \3", lines[at], count=1)
    return "\n".join(lines)


def _symbol(text: Text, choose: Random) -> str | None:
    """Rename a function or a reference to one."""
    places = text.places("symbol")
    if not places:
        return None
    names = [text.tokens[i] for i in places] + ["@missing", '@"odd name"', "@", "@main", "@\udcff"]
    return text.with_({choose.choice(places): choose.choice(names[:-1])})


def _region_arguments(text: Text, choose: Random) -> str | None:
    """Swap, drop or repeat the arguments of a block or function."""
    places = [i for i, token in enumerate(text.tokens) if token == "(" and text.kinds[i - 1] in ("caret", "symbol")]
    places = [i for i in places if text.items(i)]
    if not places:
        return None
    at = choose.choice(places)
    items = ["".join(text.tokens[a:b]) for a, b in text.items(at)]
    match choose.randrange(3):
        case 0:
            choose.shuffle(items)
        case 1:
            items.pop(choose.randrange(len(items)))
        case _:
            items.append(choose.choice((choose.choice(items), "%more: tensor<f32>", "%token: !stablehlo.token")))
    changes = dict.fromkeys(range(at + 1, text.closing(at)), "")
    changes[at] = "(" + ", ".join(items)
    return text.with_(changes)


def _region(text: Text, choose: Random) -> str | None:
    """Drop, repeat or empty a region of an op in generic form."""
    places = [
        i
        for i, token in enumerate(text.tokens)
        if token == "{" and text.token(text.closing(i)) == "}" and "\n" in text.token(i + 1)
    ]
    if not places:
        return None
    at = choose.choice(places)
    end = text.closing(at)
    body = "".join(text.tokens[at : end + 1])
    inside = dict.fromkeys(range(at, end + 1), "")
    return text.with_(inside | {at: choose.choice(("", "{}", f"{body}, {body}", "{ stablehlo.return }", "{ ^bb0: }"))})


# ---- nonsense ----


def _token(text: Text, choose: Random) -> str | None:
    """Drop, repeat or replace any token."""
    if not text.tokens:
        return None
    at = choose.randrange(len(text.tokens))
    token = text.tokens[at]
    return text.with_({at: choose.choice(("", token + token, choose.choice(NONSENSE), choose.choice(text.tokens)))})


def _character(text: Text, choose: Random) -> str | None:
    """Drop or insert a character, or cut the text."""
    whole = "".join(text.tokens)
    at = choose.randint(0, len(whole))
    match choose.randrange(3):
        case 0:
            return whole[:at] + whole[at + 1 :]
        case 1:
            return whole[:at] + choose.choice(NONSENSE) + whole[at:]
        case _:
            return whole[:at]


_TYPE_CHANGES: dict[str, TypeChange] = {
    "size": _other_size,
    "element": _other_element,
    "rank": _other_rank,
    "order": _other_order,
    "kind": _other_type,
    "encoding": _other_encoding,
}
MUTATIONS: dict[str, Mutation] = {
    **{f"{name} of one type": _one_type(change) for name, change in _TYPE_CHANGES.items()},
    **{f"{name} of all such types": _all_types(change) for name, change in _TYPE_CHANGES.items()},
    "element everywhere": _element_everywhere,
    "size everywhere": _size_everywhere,
    "type of a value": _retype_value,
    "integer": _integer,
    "list": _list,
    "drop attribute": _drop_attribute,
    "value of an attribute": _attribute_value,
    "repeat attribute": _repeat_attribute,
    "word": _word,
    "literal": _literal,
    "operand": _operand,
    "swap operands": _swap_operands,
    "operands of a generic op": _generic_operands,
    "results of a generic op": _generic_results,
    "number of results": _result_count,
    "op": _op_name,
    "line": _line,
    "return": _return,
    "symbol": _symbol,
    "arguments of a region": _region_arguments,
    "region": _region,
    "token": _token,
    "character": _character,
}
SYNTAX = ("token", "character", "line")  # mutations that mostly break the text rather than what it says
