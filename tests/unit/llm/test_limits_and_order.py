"""Limits of chat templates, exactly; pages that are not full; who is served next; texts that end an answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.dtype import dtype, f32
from smelt.errors import FileError, RunError, SmeltError, UnsupportedError
from smelt.llm import chat, encoder
from smelt.llm.config import PAGE
from smelt.llm.cross_encoder import read_head
from smelt.llm.engine import Engine
from smelt.llm.language_model import LanguageModel
from smelt.llm.pages import Pages
from smelt.llm.request import Request
from smelt.llm.sample import Sampler, Sampling
from smelt.llm.scheduler import Scheduler
from smelt.llm.stops import Stops
from smelt.llm.tails import LEAST, MOST, Tails
from smelt.shape import Shape
from smelt.weights import Stored, Weights


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of characters, and of bits, that are compared with the limits."""
    found: list[int] = []
    monkeypatch.setattr(chat, "_check", found.append)
    monkeypatch.setattr(chat, "_check_bits", lambda bits: found.append(-bits))
    return found


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ("abc", 3),
        (b"ab", 2),
        (0, 1),
        (255, 3),
        (True, 1),
        (None, 1),
        (1.5, 1),
        ([], 1),
        (["ab", "c"], 1 + 4 + 3),
        (("ab",), 5),
        ({"k": "vw"}, 1 + 3 + 4),
        ([["a"]], 1 + (1 + 3) + 2),
        ({"a"}, 4),
    ],
)
def test_weights_of_values(value: Any, weight: int) -> None:
    assert chat._weigh(value) == weight


def test_counting_stops_where_it_is_enough() -> None:
    assert chat._weigh(["ab"] * 1000, 9) == 1 + 4 * 3


# operator, operands, numbers that are checked; negative: bits
OPERATIONS: list[tuple[str, Any, Any, list[int]]] = [
    ("*", "abc", 4, [12]),
    ("*", 4, "abc", [12]),
    ("*", "abc", -1, [0]),
    ("*", ["ab"], 3, [15]),
    ("*", 3, 255, [-(2 + 8)]),
    ("*", 1.5, 3, []),
    ("**", 3, 5, [-10]),
    ("**", 3, -5, [-10]),
    ("**", 2.0, 5, []),
    ("+", "ab", "c", [3]),
    ("+", 3, 4, []),
    ("+", 1.5, 4, []),
    ("%", "%5d %s", "abc", [64 * 5 + 2 * 3]),
    ("%", "none", "abc", [3]),
    ("%", 7, 3, []),
]


@pytest.mark.parametrize(("operator", "left", "right", "numbers"), OPERATIONS)
def test_operands_are_checked_before_they_grow(
    operator: str, left: Any, right: Any, numbers: list[int], checked: list[int]
) -> None:
    chat._check_operands(operator, left, right)
    assert checked == numbers


@pytest.mark.parametrize(
    ("function", "args", "numbers"),
    [
        ("ab".center, (9,), [64 * 9]),
        ("ab".zfill, (-9,), [64 * 9]),
        ("ab".expandtabs, (), [64 * 8]),
        ("{}{:>7}".format, ("abc", "d"), [64 * 7 + 4 * 2]),
        ("x".format, ("abc",), [3]),
        ("abc".replace, ("a", "xyz"), [4 + 4 * 3]),
        ("ab".join, (["x", "y"],), [1 + 3 + 3 + 3 * 2]),
        ("abc".translate, ({},), [1 + 4 * 0]),
        ("abc".upper, (), []),
        (len, ("abc",), []),
    ],
)
def test_methods_are_checked_before_they_grow(
    function: Any, args: tuple[Any, ...], numbers: list[int], checked: list[int]
) -> None:
    chat._check_call(function, args)
    assert checked == numbers


@pytest.mark.parametrize(
    ("name", "args", "numbers"),
    [
        ("upper", ("abc",), [3]),
        ("format", ("%9d", 5), [3 + 2, 64 * 9]),
        ("join", (["a", "b", "c"], "--"), [1 + 9 + 2, 3 * 2]),
        ("indent", ("abc", 7), [3 + 2, 3 * 7]),
        ("replace", ("abcd", "a", "xyz"), [4 + 1 + 3, 4 * 3]),
        ("batch", ([1, 2], 1), [1 + 6 + 1, 2 * 1]),
        ("wordwrap", ("abc",), [3, 3 * 1]),
    ],
)
def test_filters_are_checked_before_they_grow(
    name: str, args: tuple[Any, ...], numbers: list[int], checked: list[int]
) -> None:
    assert chat._bound_filter(name, lambda *given: given)(*args) == args
    assert checked == numbers


def test_numbers_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_TEXT", 640)
    call = chat._bound_filter("upper", lambda *given: given)
    assert call("a", -10) == ("a", -10)
    for wrong in (11, -11):
        with pytest.raises(chat._Limit, match="640 characters"):
            call("a", wrong)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_TEXT", 10)
    monkeypatch.setattr(chat, "MAX_BITS", 20)
    chat._check(10)
    chat._check_bits(20)
    assert chat._check_value("a" * 10) == "a" * 10
    assert chat._concat(["abcde", "fghij"]) == "abcdefghij"
    assert chat._join(["abcde", 12345]) == "abcde12345"
    with pytest.raises(chat._Limit, match="10 characters"):
        chat._check(11)
    with pytest.raises(chat._Limit, match="20 bits"):
        chat._check_bits(21)
    for fails in (
        lambda: chat._check_value("a" * 11),
        lambda: chat._concat(["abcdef"] * 2),
        lambda: chat._join(["ab"] * 6),
    ):
        with pytest.raises(chat._Limit):
            fails()


def test_the_largest_number_of_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_TEXT", 77)
    assert chat._widest("%5d %12s") == 12
    assert chat._widest("none") == 0
    assert chat._widest("%" + "9" * 11) == 99_999_999_999
    assert chat._widest("%" + "9" * 12) == 77


def test_forms_of_the_time_are_short() -> None:
    pytest.importorskip("jinja2")
    now = chat._environment().globals["strftime_now"]
    assert now("x" * 300) == "x" * 200
    assert len(now("%Y")) == 4


# ---- pages that are not full ----


def test_tails_are_found_by_their_beginning() -> None:
    tails = Tails()
    long = list(range(20))
    assert tails.find(b"a", long) is None
    assert tails.put(b"a", 5, long[: LEAST - 1]) is None
    assert tails.find(b"a", long) is None  # not worth a copy
    assert tails.put(b"a", 6, long[:LEAST]) == 5  # it has the tokens of the other
    assert (5 in tails, 6 in tails) == (False, True)
    assert tails.find(b"a", long) == (6, LEAST)
    assert tails.find(b"b", long) is None
    assert tails.put(b"a", 7, long[:LEAST]) == 7  # nothing new
    assert tails.put(b"a", 8, [*long[: LEAST + 2], 99]) == 6
    assert tails.find(b"a", long) == (8, LEAST + 2)
    assert tails.find(b"a", long[:LEAST]) == (8, LEAST)
    tails.drop(8)
    assert tails.find(b"a", long) is None
    assert tails._pages == {}


def test_the_oldest_of_many_tails_goes() -> None:
    tails = Tails()
    for page in range(MOST):
        assert tails.put(b"a", page, [page] * LEAST) is None
    assert tails.put(b"a", 50, [50] * LEAST) == 0
    assert (0 in tails, 1 in tails, 50 in tails) == (False, True, True)
    tails.clear()
    assert 50 not in tails
    assert tails.find(b"a", [50] * LEAST) is None


# ---- who is served ----


def request(client: str) -> Any:
    return SimpleNamespace(client=client, number=0)


def test_a_new_client_begins_with_what_the_least_served_had() -> None:
    scheduler = Scheduler(Pages(10), lambda pages, sequences: 8, 2)
    first = request("a")
    scheduler._served.update({"a": 9, "c": 40})
    scheduler.add(first)
    assert dict(scheduler._served) == {}  # nobody waited
    scheduler._served.update({"a": 50, "b": 20})
    scheduler.running.append(request("b"))
    for client, served in (("c", 20), ("a", 50), ("d", 20)):
        scheduler.add(request(client))
        assert scheduler._served[client] == served
    scheduler._served["e"] = 33
    scheduler.add(request("e"))
    assert scheduler._served["e"] == 33
    assert [each.number for each in scheduler.waiting] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("sequences", [1, 2])
def test_an_arrival_that_finds_all_sequences_taken_changes_nothing(sequences: int) -> None:
    scheduler = Scheduler(Pages(10), lambda pages, sequences: 8, sequences)
    found = []
    for client in "ab":
        scheduler.add(request(client))
        found.append(scheduler.is_settled)
        scheduler.running.append(scheduler.waiting.pop())
        found.append(scheduler.is_settled)
    assert found == [False, True, sequences == 1, True]


def test_those_who_cannot_be_told_the_end_disturb_no_one(caplog: pytest.LogCaptureFixture) -> None:
    def emit(piece: Any) -> None:
        raise ValueError("no one there")

    ended = Request([1], 5, Sampler(Sampling(), [1], 9), emit=emit)
    ended.end("cancelled")
    assert ended.finish == "cancelled"
    assert "no one there" in caplog.text


def test_nothing_can_begin_where_those_that_generate_fill_a_step() -> None:
    scheduler = Scheduler(Pages(10), lambda pages, sequences: 2, 4)
    first, second, third = (Request([1], 5, Sampler(Sampling(), [1], 9)) for _ in range(3))
    for each in (first, second, third):
        scheduler.add(each)
    for settled in (False, True):
        assert [part.request for part in scheduler.plan()] == [first, second]
        assert (scheduler.waiting, scheduler.is_settled) == ([third], settled)
        for each in (first, second):
            assert each.sequence is not None
            scheduler.pages.commit(each.sequence, each.tokens[-1:])
            each.tokens.append(2)
    scheduler.remove(first)
    assert not scheduler.is_settled
    assert [part.request for part in scheduler.plan()] == [second, third]


# ---- stop strings ----


@pytest.mark.parametrize(
    ("stops", "pieces", "wanted"),
    [
        (("xyz",), ["ab", "cx", "y", "q"], [("ab", False), ("c", False), ("", False), ("xyq", False)]),
        (("xyz",), ["abx", "yzq"], [("ab", False), ("", True)]),
        (("b", "ab"), ["xxab"], [("xx", True)]),
        ((), ["abc"], [("abc", False)]),
    ],
)
def test_texts_that_end_an_answer(stops: tuple[str, ...], pieces: list[str], wanted: list[tuple[str, bool]]) -> None:
    found = Stops(stops)
    assert [found.add(each) for each in pieces] == wanted


def test_what_was_held_back_comes_at_the_end() -> None:
    stops = Stops(("xyz",))
    assert stops.add("abxy") == ("ab", False)
    assert stops.finish() == "xy"
    assert stops.finish() == ""


# ---- heads of cross-encoders ----


def weights(rows: int, *names: str) -> Weights:
    arrays: dict[str, Any] = {}
    for name in names:
        arrays[f"{name}.weight"] = np.zeros((rows, 4), np.float32)
        arrays[f"{name}.bias"] = np.zeros(rows, np.float32)
    return Weights.of(arrays)


SAID = {"architectures": ["BertForSequenceClassification"]}


def test_heads_of_one_label() -> None:
    names = ("bert.pooler.dense", "classifier")
    found = read_head(weights(1, *names), SAID)
    assert found is not None
    assert [each.activation for each in found] == ["Tanh", "Identity"]
    assert read_head(weights(2, *names), SAID) is None  # several labels
    assert read_head(weights(1, *names), {"architectures": ["BertModel"]}) is None
    assert read_head(weights(1, *names), {}) is None
    assert read_head(weights(1, *names), {"architectures": 3}) is None
    with pytest.raises(FileError, match="the layers behind the encoder are missing"):
        read_head(weights(1, "classifier"), SAID)


def test_a_model_closes_its_engine_before_its_weights_once() -> None:
    """And where nothing refers to it any more."""
    closed: list[str] = []

    def load() -> LanguageModel:
        engine, step = (SimpleNamespace(close=partial(closed.append, name)) for name in ("engine", "step"))
        origin = SimpleNamespace(config=None, path=Path("folder/m.gguf"), kind="file")
        return LanguageModel(origin, step, engine, 8)  # type: ignore[arg-type]

    model = load()
    assert (model.name, closed) == ("m", [])
    model.close()
    assert closed == ["engine", "step"]
    model.close()
    with load() as model:
        assert len(closed) == 2
    assert closed == ["engine", "step"] * 2
    model = load()
    del model
    assert closed == ["engine", "step"] * 3


def test_weights_of_an_encoder() -> None:
    """All of them, no others, under the names of today or of old files, as floats."""
    config: Any = SimpleNamespace(layers=2)

    def named(prefix: str = "", old: bool = False) -> dict[str, Stored]:
        names = [
            prefix + theirs.format(i=i, p=part)
            for ours, theirs in encoder._NAMES.items()
            for i in (range(2) if "{i}" in ours else (0,))
            for part in (("weight", "bias") if "{p}" in ours else ("",))
        ]
        if old:
            parts = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
            for new, before in parts.items():
                names = [name.replace(new, before) for name in names]
        return {name: Stored(Shape.of(f32, (1,)), lambda: np.zeros(1, np.float32)) for name in names}

    count = len(named())
    for stored in (named(), named("bert."), named("model."), named("roberta.", old=True)):
        weights, formats = encoder.encoder_weights(Weights(stored, source="m"), config)
        assert (len(weights), {*formats.values()}) == (count, {f32})
    last = [*named()][-1]
    short, long, whole = named(), named(), named()
    del short[last]
    long["more"] = whole[last] = Stored(Shape.of(dtype("i32"), (1,)), lambda: np.zeros(1, np.int32))
    refused: list[tuple[dict[str, Stored], type[SmeltError], str]] = [
        (short, FileError, "m: a tensor is missing"),
        (long, FileError, "m: tensors that an encoder has no use for"),
        (whole, UnsupportedError, "m: weights of an encoder are floats"),
    ]
    for stored, kind, message in refused:
        with pytest.raises(kind, match=message):
            encoder.encoder_weights(Weights(stored, source="m"), config)


def test_a_request_fits_into_the_cache_to_the_last_token() -> None:
    """Three pages hold three pages of tokens, prompt and answer together: one more is refused with that number."""
    room: Any = SimpleNamespace(pool=SimpleNamespace(pages=Pages(3)))
    for prompt in (1, PAGE, 3 * PAGE):
        Engine._check_room(room, SimpleNamespace(prompt=prompt, most=3 * PAGE - prompt))  # type: ignore[arg-type]
        with pytest.raises(RunError, match=f"together at most {3 * PAGE}") as caught:
            Engine._check_room(room, SimpleNamespace(prompt=prompt, most=3 * PAGE - prompt + 1))  # type: ignore[arg-type]
        assert f"{prompt} + {3 * PAGE - prompt + 1}" in str(caught.value)
