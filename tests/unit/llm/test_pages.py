"""Pages of the KV cache and the scheduler, without a model: sharing, least recently used, fairness, preemption."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from smelt.llm import prompt_cache
from smelt.llm.cache import Pool
from smelt.llm.config import PAGE, Config, Layer
from smelt.llm.pages import Pages, Sequence
from smelt.llm.request import Request
from smelt.llm.sample import Sampler, Sampling
from smelt.llm.scheduler import Scheduler
from smelt.llm.tails import Tails


def written(pages: Pages, tokens: list[int]) -> Sequence:
    sequence = pages.match(tokens)
    rest = tokens[sequence.length :]
    assert pages.reserve(sequence, len(rest))
    pages.commit(sequence, rest)
    return sequence


def test_full_pages_are_shared_and_others_are_not() -> None:
    pages = Pages(16)
    first = list(range(2 * PAGE + 5))
    a = written(pages, first)
    b = pages.match([*first[: PAGE + 10], 7, *first[PAGE + 11 :]])
    assert (b.pages, b.length) == (a.pages[:1], PAGE)
    c = pages.match(first)
    assert (c.pages, c.length) == (a.pages[:2], 2 * PAGE)
    assert pages.match(first[: 2 * PAGE]).length == PAGE  # one token is left to compute
    assert Pages(16, b"other model").match(first).length == 0
    assert pages.held == 3


def test_pages_without_references_stay_cached_until_the_room_is_needed() -> None:
    pages = Pages(4)
    old, new = list(range(PAGE)), list(range(100, 100 + PAGE))
    for tokens in (old, new):
        pages.free(written(pages, tokens))
    assert (pages.held, pages.cached, pages.available) == (0, 2, 4)
    again = pages.match([*old, 1])
    assert again.length == PAGE
    pages.free(again)  # used last: the other one goes first
    big = Sequence()
    assert pages.reserve(big, 3 * PAGE)
    assert pages.match([*new, 1]).length == 0
    assert not pages.reserve(Sequence(), 2 * PAGE)
    assert pages.match([*old, 1]).length == PAGE


def test_what_a_sequence_left_in_its_last_page_is_copied() -> None:
    pages = Pages(4, copies=True)
    first = list(range(PAGE + 19))
    a = written(pages, first)
    pages.free(a)
    assert (pages.held, pages.cached) == (0, 2)
    b = pages.match([*first[: PAGE + 15], 0, 0])
    pages.copy_tail(b, [*first[: PAGE + 15], 0, 0])
    assert (b.length, b.tail, len(b.pages)) == (PAGE + 15, first[PAGE : PAGE + 15], 2)
    ((source, target),) = pages.take_copies()
    assert (source, target) == (1, b.pages[1])
    assert pages.held == 2
    c = pages.match(first)
    pages.copy_tail(c, first)
    assert c.length == PAGE + 18  # one token is left to compute
    pages.free(b)  # begins as the known page does: that one stays
    assert pages.reserve(Sequence(), PAGE)  # the page of b: the copy of c is not made yet
    assert not pages.reserve(Sequence(), PAGE)
    pages.free(c)
    pages.forget()
    d = pages.match(first)
    pages.copy_tail(d, first)
    assert (d.length, pages.take_copies()) == (0, [])


def test_a_prompt_that_ends_with_a_page_is_read_again_but_for_its_last_token() -> None:
    tokens = list(range(2 * PAGE))
    for copies, length in ((True, 2 * PAGE - 1), (False, PAGE)):
        pages = Pages(6, copies=copies)
        pages.free(written(pages, tokens))
        again = pages.match(tokens)
        pages.copy_tail(again, tokens)
        assert (again.length, len(again.pages)) == (length, -(-length // PAGE))
        assert pages.take_copies() == ([(1, 2)] if copies else [])
        pages.free(again)
        assert (pages.held, pages.available) == (0, 6)


def test_few_last_pages_are_kept_after_a_prefix() -> None:
    tails = Tails()
    assert [tails.put(b"", page, [page] * 20) for page in range(9)] == [None] * 8 + [0]
    assert tails.put(b"", 9, [3] * 10) == 9  # another one has its tokens
    assert tails.put(b"", 10, [3] * 30) == 3
    assert tails.find(b"", [3] * 25) == (10, 25)
    assert tails.find(b"", [3] * 7) is None  # not worth a copy
    assert (0 in tails, 10 in tails) == (False, True)


def test_forks_share_and_truncated_pages_are_not_written_again() -> None:
    pages = Pages(16)
    a = written(pages, list(range(2 * PAGE + 9)))
    b = pages.fork(a)
    assert (b.pages, b.length) == (a.pages[:2], 2 * PAGE)
    assert pages.truncate(a, 2 * PAGE + 3) == 2 * PAGE + 3
    assert a.tail == [2 * PAGE, 2 * PAGE + 1, 2 * PAGE + 2]
    assert pages.truncate(a, PAGE + 3) == PAGE
    assert len(a.pages) == 1
    pages.free(a)
    pages.free(b)
    assert (pages.held, pages.available) == (0, 16)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5, 64, 65, 150])
@pytest.mark.parametrize("slides", [False, True])
def test_pages_are_never_lost(seed: int, window: int | None, copies: bool, slides: bool) -> None:
    """Also where layers with a window have pages of their own."""
    dice = Random(seed)
    near = Pages(9, window=window, copies=copies, small=4) if slides else None
    pages = Pages(12, window=None if slides else window, copies=copies, sliding=near)
    live: list[Sequence] = []
    for _ in range(600):
        act = dice.random()
        if act < 0.4:
            tokens = [dice.randrange(2)] * dice.randrange(1, 3 * PAGE)
            live.append(pages.match(tokens))
            pages.copy_tail(live[-1], tokens)
            for each in (pages, near or pages):
                each.take_copies()
        elif live and act < 0.7:
            sequence, count = dice.choice(live), dice.randrange(1, 100)
            if pages.reserve(sequence, count):
                pages.commit(sequence, [dice.randrange(2)] * count)
        elif live and act < 0.8:
            live.append(pages.fork(dice.choice(live)))
        elif live and act < 0.9:
            sequence = dice.choice(live)
            pages.truncate(sequence, dice.randrange(sequence.length + 1))
        elif live:
            pages.free(live.pop(dice.randrange(len(live))))
        for sequence in (each.sliding or each for each in live):
            first = 0 if window is None else max(0, sequence.length - window + 1) // PAGE  # that the next token sees
            assert 0 <= sequence.gone <= first
            assert sequence.gone >= first - 1
        beside = [each.sliding for each in live if each.sliding is not None]
        for kind, sequences in [(pages, live), *([] if near is None else [(near, beside)])]:
            held = {page for sequence in sequences for page in sequence.held}
            assert (kind.held, kind.available) == (len(held), kind.limit - len(held))
            assert all(sequence.length <= len(sequence.pages) * PAGE for sequence in sequences)
        if near is not None:
            assert [each.length for each in beside] == [each.length for each in live]
            assert [each.chain for each in beside] == [each.chain for each in live]
    for sequence in live:
        pages.free(sequence)
    for kind in (pages, near or pages):
        assert kind.available == kind.limit


def test_pages_behind_the_window_are_free_and_a_prefix_goes_on_from_the_window() -> None:
    pages, tokens = Pages(8, window=PAGE), [i % 7 for i in range(20 * PAGE)]
    sequence = Sequence()
    for at in range(0, len(tokens), 50):
        part = tokens[at : at + 50]
        assert pages.reserve(sequence, len(part))
        pages.commit(sequence, part)
        assert pages.held == len(sequence.held) <= pages.count_needed(len(tokens), 50) <= 4
    pages.free(sequence)
    again = pages.match([*tokens, 1])
    assert (again.length, again.gone, len(again.held)) == (20 * PAGE, 19, 1)
    assert pages.count_shared([*tokens, 1]) == (1, 0)
    other = pages.fork(again)
    assert pages.truncate(again, 19 * PAGE) == 0  # what it would see is gone
    pages.free(other)
    assert (pages.held, pages.available) == (0, 8)


# ---- the scheduler ----


def request(count: int, most: int = 10, client: str = "") -> Request:
    return Request([1] * count, most, Sampler(Sampling(), [], 8), client=client)


def advance(scheduler: Scheduler) -> list[tuple[int, int]]:
    """A step without a model: (number of the request, tokens) of its parts."""
    parts = scheduler.plan()
    for part in parts:
        last, found = part.is_last, part.request
        assert found.sequence is not None
        at = found.sequence.length
        scheduler.pages.commit(found.sequence, found.tokens[at : at + part.count])
        if last:
            found.tokens.append(found.number)
            if found.generated == found.most:
                found.end("length")
                scheduler.remove(found)
    return [(part.request.number, part.count) for part in parts]


def test_sequences_that_generate_go_first_and_prompts_are_read_in_chunks() -> None:
    scheduler = Scheduler(Pages(64), lambda pages, sequences: 100, 4)
    scheduler.add(request(50))
    assert advance(scheduler) == [(1, 50)]
    scheduler.add(request(250))
    assert advance(scheduler) == [(1, 1), (2, 99)]
    assert advance(scheduler) == [(1, 1), (2, 99)]
    assert advance(scheduler) == [(1, 1), (2, 52)]
    assert advance(scheduler) == [(1, 1), (2, 1)]


def test_clients_are_served_alike() -> None:
    scheduler = Scheduler(Pages(64), lambda pages, sequences: 40, 1)
    for client in ("ann", "ann", "ann", "bob"):
        scheduler.add(request(30, 1, client))
    order = [advance(scheduler)[0][0] for _ in range(4)]
    assert order == [1, 4, 2, 3]


@pytest.mark.parametrize("name", ["bob", "eve"])
def test_a_client_does_not_make_up_for_the_time_when_it_asked_for_nothing(name: str) -> None:
    """Bob asked before, Eve did not; both find their turn after Ann's long use as one who always asked."""
    scheduler = Scheduler(Pages(64), lambda pages, sequences: 40, 1)
    for client in ("bob", *["ann"] * 9):
        scheduler.add(request(30, 1, client))
    for _ in range(8):
        advance(scheduler)
    for _ in range(3):
        scheduler.add(request(30, 1, name))
    order = [advance(scheduler)[0][0] for _ in range(3)]
    assert order == [9, 11, 10]
    while advance(scheduler):
        pass
    scheduler.add(request(30, 1, "zoe"))
    assert set(scheduler._served) <= {"zoe"}  # no client is remembered when none asks


def test_the_youngest_gives_way_and_all_come_to_an_end() -> None:
    scheduler = Scheduler(Pages(4), lambda pages, sequences: 200, 8)
    requests = [request(60, 100), request(61, 100), request(62, 100)]
    for each in requests:
        scheduler.add(each)
    for _ in range(1000):
        if not advance(scheduler):
            break
    assert [each.finish for each in requests] == ["length"] * 3
    assert scheduler.preempted
    assert requests[0].times["end"] < requests[1].times["end"] < requests[2].times["end"]
    assert (scheduler.pages.held, scheduler.pages.available) == (0, 4)


def test_windows_let_long_sequences_run_together() -> None:
    scheduler = Scheduler(Pages(12, window=PAGE), lambda pages, sequences: 100, 8)
    requests = [request(600, 300), request(10, 500)]
    for each in requests:
        scheduler.add(each)
    seen = 0
    while parts := advance(scheduler):
        seen = max(seen, len(parts))
    assert [each.finish for each in requests] == ["length"] * 2
    assert (seen, scheduler.preempted) == (2, 0)
    assert (scheduler.pages.held, scheduler.pages.available) == (0, 12)


def test_alternatives_wait_for_the_prompt() -> None:
    scheduler = Scheduler(Pages(64), lambda pages, sequences: 100, 4)
    first, second = request(150, 2), request(150, 2)
    second.after = first
    scheduler.add(first)
    scheduler.add(second)
    assert advance(scheduler) == [(1, 100)]
    assert advance(scheduler) == [(1, 50)]
    assert advance(scheduler) == [(1, 1), (2, 150 - 2 * PAGE)]
    assert second.cached == 2 * PAGE


@pytest.mark.parametrize("block", [1, 3000, 1 << 24])
def test_arrays_grow_some_layers_at_a_time_and_keep_their_content(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smelt.llm.cache.BLOCK", block)
    config = Config("toy", (Layer(None),) * 5, 1, 1, 1, 1, 1, 1000, 1000, 1e-5, "silu", 1.0)
    pool = Pool(config, lambda array: array, 40)
    pool.pages.free(written(pool.pages, list(range(8 * PAGE))))
    arrays = pool.take()
    for i, pair in enumerate(arrays):
        for array in pair:
            array[:] = np.arange(array.size).reshape(array.shape) + i
    before = [np.array(array) for pair in arrays for array in pair]
    pool.give(arrays)
    pool.pages.free(written(pool.pages, list(range(7, 7 + 20 * PAGE))))
    after = [array for pair in pool.take() for array in pair]
    assert len(after) == len(before) == 10
    for old, new in zip(before, after, strict=True):
        assert len(new) > len(old)
        assert np.array_equal(new[: len(old)], old)
        assert not new[len(old) :].any()
        assert new.flags.c_contiguous


def test_of_a_prompt_cache_that_is_larger_than_the_pool_the_beginning_stays(tmp_path: Path) -> None:
    config = Config("toy", (Layer(None),), 1, 1, 1, 1, 1, 1000, 1000, 1e-5, "silu", 1.0)
    tokens = [i % 997 for i in range(10 * PAGE + 3)]
    large, small = (Pool(config, lambda array: array, limit) for limit in (12, 4))
    large.pages.free(written(large.pages, tokens))
    ((keys, values),) = arrays = large.take()
    keys[:], values[:] = (np.arange(each.size).reshape(each.shape) for each in (keys, values))
    large.give(arrays)
    path = tmp_path / "cache"
    assert prompt_cache.save(path, tokens, large, config, "m") == 10 * PAGE
    assert prompt_cache.load(path, small, config, "m") == 4 * PAGE
    known, found = (pool.pages.match(tokens) for pool in (large, small))
    assert found.length == 4 * PAGE
    for got, want in zip(small.read(0, found.pages), large.read(0, known.pages[:4]), strict=True):
        assert np.array_equal(got, want)


def test_a_sequence_is_long_by_its_whole_length() -> None:
    """Above the switch of a model's frequencies, whether the tokens or the stated length say so."""
    pages = Pages(16, switch=100)
    for count, length, wanted in (
        (100, None, False),
        (101, None, True),
        (5, 100, False),
        (5, 101, True),
        (200, 9, False),
    ):
        found = pages.match(list(range(count)), length)
        assert (found.is_long, found.most) == (wanted, None if wanted else 100)
    assert not Pages(16).match(list(range(500))).is_long
