"""What a loaded language model does, on a tiny checkpoint: generating, streaming, chatting, limits and mistakes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.cli.chat import Conversation
from smelt.cli.generate import generate
from smelt.cli.inspect import inspect
from smelt.errors import FileError, MemoryLimitError, ParseError, RunError, SmeltError, UnsupportedError
from smelt.ir.cost import operations
from smelt.llm import LanguageModel, Sampling, checkpoint
from smelt.llm.batch import Batch
from smelt.llm.cache import Pool
from smelt.llm.step import Step, step_program
from smelt.size import evaluate
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary

CASE = Case.load(FIXTURE)[0]
WORDS = ["<unk>", *(f"w{i}" for i in range(1, 96))]
TEMPLATE = "{% for m in messages %}w5 {{ m.content }} {% endfor %}w6"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llm")
    write_checkpoint(path, CASE.config, CASE.shapes)
    write_vocabulary(path / "tokenizer.json", WORDS)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, CASE.ids[5]]}))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, engine="native") as loaded:
        yield loaded


def test_a_path_gives_the_same_object_everywhere(folder: Path, model: LanguageModel) -> None:
    with smelt.load(folder, engine="reference") as other:
        assert isinstance(other, LanguageModel)
        np.testing.assert_allclose(other.logits([3, 4, 5]), model.logits([3, 4, 5]), rtol=1e-4, atol=1e-4)
    assert model.logits([3]).dtype == np.float32
    assert model.logits([3, 4]).shape == (2, 96)


def test_the_last_layer_computes_the_wanted_rows_alone(folder: Path) -> None:
    """All but its queries, keys and values: with one row of many the other products are those of one token."""
    found = checkpoint.open(folder, None)
    config, program = found.config, step_program(found, "f32")
    count = operations(program)
    sizes = {"S": 64, "B": 1, "M": 1, "P": 1}
    one, all_rows = (evaluate(count, {**sizes, "R": rows}) for rows in (1, 64))
    wide = config.heads * config.head_size
    products = 2 * config.d * (wide + 3 * config.f + config.v)  # o, gate, up, down and the logits of a row
    assert all_rows - one >= 63 * products


@pytest.mark.parametrize("engine", ["native", "pjrt"])
@pytest.mark.parametrize(("precision", "bound"), [("bf16", 0.03), ("tf32", 0.004)])
def test_matmuls_of_rounded_operands(
    folder: Path, model: LanguageModel, precision: str, bound: float, engine: str
) -> None:
    """Tokens that the step itself picks are those that the host picks from its logits."""
    tokens = CASE.tokens[:20]
    with smelt.llm.load(folder, engine=engine, precision=precision) as narrow:
        wide, got = model.logits(tokens), narrow.logits(tokens)
        assert 0 < np.abs(got - wide).max() < bound * np.abs(wide).max()
        picked, chosen = (narrow.generate(tokens, max_tokens=6, logprobs=each) for each in (None, 1))
        assert picked.ids == chosen.ids


def test_matmuls_in_fp8(folder: Path, model: LanguageModel) -> None:
    """All matrices of layers, and no other product: logits ask for precision. Engines compute the same numbers."""
    program, layers = step_program(checkpoint.open(folder, None), "fp8"), len(model.config.layers)
    products = [op for op in program.main.body.ops if op.name == "stablehlo.dot_general"]
    narrow = [op for op in products if "f8E4M3FN" in str(op.operands[0].shape)]
    assert len(narrow) == 7 * layers
    assert [op.result.shape.sizes[-1] for op in products if op not in narrow] == [model.config.v]
    tokens = CASE.tokens[:20]
    wide = model.logits(tokens)
    with (
        smelt.llm.load(folder, engine="reference", precision="fp8") as meant,
        smelt.llm.load(folder, engine="native", precision="fp8") as native,
    ):
        want, got = meant.logits(tokens), native.logits(tokens)
        assert 0.005 < np.abs(want - wide).max() / np.abs(wide).max() < 0.25
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    with pytest.raises(UnsupportedError, match="rounded once"):
        smelt.llm.load(folder, engine="pjrt", precision="fp8")


def test_unknown_precisions_of_a_product_are_refused() -> None:
    x, w = smelt.symbolic("f32[s=S, d=8]"), smelt.symbolic("f32[f=4, d=8]")
    with pytest.raises(SmeltError, match="one of 'default', 'high', 'highest', not 'most'"):
        x.dot(w, "d", precision="most")  # type: ignore[arg-type]


def test_a_device_decodes_in_runs_that_end_where_others_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of different lengths, over the ends of pages, with a stop in the middle, are those of steps over pages;
    what a run wrote is found in pages, by those that go on."""
    prompts, lengths = [(CASE.tokens * 20)[:60], CASE.tokens[:7], CASE.tokens[3:9]], [72, 6, 20]
    with smelt.llm.load(folder, engine="pjrt", precision="f32") as loaded:
        step: Any = loaded._engine._step
        begun: list[bool] = []

        def begin_run(*given: Any) -> Any:
            run = type(step).begin_run(step, *given)
            begun.append(run is not None)
            return run

        monkeypatch.setattr(step, "begin_run", begin_run)

        def answer(**options: Any) -> list[tuple[int, ...]]:
            alone = loaded.generate(prompts[0], max_tokens=lengths[0], ignore_end=True, **options).ids
            streams = [
                loaded.stream(prompt, max_tokens=most, ignore_end=True, **options)
                for prompt, most in zip(prompts, lengths, strict=True)
            ]
            return [alone, *(each.answer().ids for each in streams)]

        slow = answer(logprobs=1)
        assert not begun
        assert slow[0] == slow[1]
        loaded._engine.between_steps(loaded._engine.pool.pages.forget)
        assert answer() == slow
        assert len(begun) > 1
        assert all(begun)
        more = [*prompts[0], *slow[0]]
        again = loaded.generate(more[:129], max_tokens=3, ignore_end=True)
        assert again.cached == 128
        assert again.ids == tuple(more[129:132])
        drawn = {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 5}
        pair = [
            loaded.generate_all(prompts, max_tokens=9, ignore_end=True, logprobs=each, **drawn) for each in (None, 1)
        ]
        assert [each.ids for each in pair[0]] == [each.ids for each in pair[1]]
        assert pair[0][0].ids != slow[0][:9]
        begun.clear()
        monkeypatch.setattr(loaded._engine, "_spare", 0)  # there is no room for slots
        assert answer() == slow
        assert not any(begun)
        monkeypatch.undo()

        def fill(*_: Any) -> Any:
            raise RunError("no memory left on the device for the run")

        monkeypatch.setattr(step.slots, "fill", fill)  # there seemed to be room
        assert loaded.generate(prompts[1], max_tokens=lengths[1], ignore_end=True).ids == slow[2]
        monkeypatch.undo()

        ended = [loaded.generate(CASE.tokens, max_tokens=20, logprobs=each) for each in (1, None)]
        assert ended[0].ids == ended[1].ids
        assert ended[0].finish == ended[1].finish == "stop"
        stream = loaded.stream(prompts[1], max_tokens=40, ignore_end=True)
        next(iter(stream))
        stream.close()
        assert loaded.generate(prompts[1], max_tokens=lengths[1], ignore_end=True).ids == slow[2]
        assert loaded._engine.between_steps(lambda: loaded._engine.pool.pages.held) == 0


def test_prompts_beside_others_are_read_one_by_one(folder: Path) -> None:
    """On XLA: what one step of all tokens gives, and writes."""
    with smelt.llm.load(folder, engine="pjrt", precision="f32") as loaded:
        step: Any = loaded._step
        tokens = CASE.tokens
        parts = [([3], 2, [0], [0]), (tokens[:5], 0, [1], [2, 4]), (tokens[:3], 63, [2, 3], []), ([4], 0, [4], [0])]
        batch = Batch.of(parts)
        found = []
        for run in (step.run, lambda *given: Step.run(step, *given)):
            pool = Pool(loaded.config, step.put, 8)
            pool.pages.used = 5
            rows, pools = run(batch, pool.take())
            content = [each.numpy() for pair in pools for each in pair]
            found.append((rows.logits[:4], rows.states[:4], [rows.best(i) for i in range(4)], content))
        (logits, states, best, content), (wanted, wanted_states, likeliest, wanted_content) = found
        np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(states, wanted_states, rtol=1e-4, atol=1e-4)
        assert best == likeliest
        for ours, theirs in zip(content, wanted_content, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cache", "close"), [("f16", 3e-3), ("bf16", 3e-2)])
def test_keys_and_values_take_16_bits_where_asked(
    folder: Path, model: LanguageModel, cache: str, close: float, tmp_path: Path
) -> None:
    tokens = (CASE.tokens * 20)[:130]
    with smelt.llm.load(folder, engine="native", cache=cache) as narrow:
        wide = model.logits(tokens)
        assert 0 < np.abs(narrow.logits(tokens) - wide).max() < close * np.abs(wide).max()
        narrow.generate(tokens, max_tokens=1)
        narrow.save_cache(tmp_path / "pages", tokens)
        assert narrow.load_cache(tmp_path / "pages") == len(tokens) // 64 * 64
        with pytest.raises(FileError, match="another model"):
            model.load_cache(tmp_path / "pages")


def test_generating_ends_at_end_tokens_and_lengths(model: LanguageModel) -> None:
    assert CASE.ids[5] not in CASE.ids[:5]
    answer = model.generate(CASE.tokens, max_tokens=20)
    assert (answer.finish, list(answer.ids)) == ("stop", CASE.ids[:6])
    answer = model.generate(CASE.tokens, max_tokens=20, ignore_end=True)
    assert (answer.finish, list(answer.ids)) == ("length", CASE.ids[:20])
    assert answer.text == model.tokenizer.decode(CASE.ids[:20])
    assert answer.prompt_tokens == 24
    assert answer.timings["prefill_s"] > 0
    assert model.generate(CASE.tokens, max_tokens=0).ids == ()
    text = " ".join(WORDS[token] for token in CASE.tokens)
    assert model.generate(text, max_tokens=4).ids == answer.ids[:4]


def test_stop_strings_are_not_in_the_text(model: LanguageModel) -> None:
    whole = model.generate(CASE.tokens, max_tokens=20, ignore_end=True).text
    stop = whole.split()[3]
    answer = model.generate(CASE.tokens, max_tokens=20, ignore_end=True, stop=stop)
    assert answer.finish == "stop"
    assert answer.text == whole[: whole.index(stop)]
    held = model.generate(CASE.tokens, max_tokens=20, ignore_end=True, stop=whole[-2:] + "\N{SNOWMAN}")
    assert (held.text, held.finish) == (whole, "length")  # what could have begun a stop string comes at the end


def test_a_stream_is_the_answer_piece_by_piece(model: LanguageModel) -> None:
    answer = model.generate(CASE.tokens, max_tokens=12, ignore_end=True)
    run = model.stream(CASE.tokens, max_tokens=12, ignore_end=True)
    pieces = list(run)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert tuple(piece.token for piece in pieces) == answer.ids
    run = model.stream(CASE.tokens, max_tokens=12)
    next(iter(run))
    run.close()
    assert run.timings["decode_s"] >= 0


def test_chat_uses_the_template(model: LanguageModel) -> None:
    messages = [{"role": "user", "content": "w7 w8"}]
    assert model.prompt(messages) == [5, 7, 8, 6]
    assert model.chat(messages, max_tokens=5).ids == model.generate([5, 7, 8, 6], max_tokens=5).ids
    assert asyncio.run(model.chat_async(messages, max_tokens=5)).ids == model.chat(messages, max_tokens=5).ids


def test_seeds_repeat_and_logprobs_are_reported(model: LanguageModel) -> None:
    asked = Sampling(temperature=1.0, top_p=0.9, seed=7, logprobs=2)
    first = model.generate(CASE.tokens, max_tokens=16, ignore_end=True, sampling=asked)
    assert first.ids == model.generate(CASE.tokens, max_tokens=16, ignore_end=True, sampling=asked).ids
    assert first.ids != model.generate(CASE.tokens, max_tokens=16, ignore_end=True, sampling=asked, seed=8).ids
    logits = model.logits([*CASE.tokens, *first.ids])
    for place, choice in enumerate(first.choices):
        row = logits[len(CASE.tokens) - 1 + place].astype(np.float64)
        want = row[choice.token] - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert choice.logprob == pytest.approx(want, abs=1e-4)
        assert len(choice.top) == 2


def test_prompts_of_any_length_are_read_in_chunks(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.logits(CASE.tokens)
    monkeypatch.setattr("smelt.llm.native_step.CHUNK", 7)
    np.testing.assert_allclose(model.logits(CASE.tokens), whole, rtol=1e-4, atol=1e-4)
    assert model.generate(CASE.tokens, max_tokens=4).ids == tuple(CASE.ids[:4])


def test_the_cache_grows_up_to_the_context(model: LanguageModel) -> None:
    answer = model.generate([3, 4, 5], max_tokens=1000, ignore_end=True)
    assert len(answer.ids) == 157
    assert answer.finish == "length"


def test_threads_may_share_a_model(model: LanguageModel) -> None:
    alone = [model.generate([3 + i, 9], max_tokens=8, ignore_end=True).ids for i in range(4)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = model.generate([3 + i, 9], max_tokens=8, ignore_end=True).ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == alone


def idle(model: LanguageModel) -> bool:
    """Whether all pages are free, within a second."""
    for _ in range(100):
        if not model._engine.scheduler.running and not model._engine.pool.pages.held:
            return True
        time.sleep(0.01)
    return False


def test_prompts_share_what_they_begin_with(model: LanguageModel) -> None:
    prompt = [(7 * i) % 90 + 3 for i in range(140)]
    cold = model.generate(prompt, max_tokens=8, ignore_end=True, logprobs=2)
    warm = model.generate([*prompt[:130], 5, 6, 7], max_tokens=1)
    again = model.generate(prompt, max_tokens=8, ignore_end=True, logprobs=2)
    assert (cold.cached, warm.cached, again.cached) == (0, 128, 139)
    assert again.choices == cold.choices
    np.testing.assert_array_equal(model.logits(prompt), model.logits(prompt))


def test_several_answers_and_several_prompts_are_computed_together(model: LanguageModel) -> None:
    asked: dict[str, Any] = {"max_tokens": 6, "ignore_end": True, "temperature": 1.5, "seed": 3}
    answer = model.generate(CASE.tokens, n=3, **asked)
    every = [answer, *answer.alternatives]
    assert len({each.ids for each in every}) == 3
    assert model.generate(CASE.tokens, n=3, **asked).alternatives[1].ids == every[2].ids
    assert len(answer.record()["alternatives"]) == 2
    prompts = [[3, 4], CASE.tokens, [9] * 40]
    together = model.generate_all(prompts, **asked)
    assert [each.ids for each in together] == [model.generate(prompt, **asked).ids for prompt in prompts]
    assert together[1].ids == answer.ids
    assert model.generate_all([]) == []


def test_requests_end_between_steps(model: LanguageModel) -> None:
    late = model.generate(CASE.tokens, max_tokens=50, timeout=0)
    assert (late.finish, late.ids) == ("deadline", ())
    run = model.stream(CASE.tokens, max_tokens=100, ignore_end=True)
    pieces = iter(run)
    assert [next(pieces).token for _ in range(3)] == CASE.ids[:3]
    run.close()
    assert idle(model)


def test_coroutines_share_a_model(model: LanguageModel) -> None:
    async def first(count: int) -> list[int]:
        found = []
        async for piece in model.stream_async(CASE.tokens, max_tokens=100, ignore_end=True):
            found.append(piece.token)
            if len(found) == count:
                break
        return found

    async def work() -> tuple[Any, Any]:
        task = asyncio.create_task(model.generate_async(CASE.tokens, max_tokens=10_000, ignore_end=True))
        both = await asyncio.gather(first(5), first(9))
        task.cancel()
        return both, (await asyncio.gather(task, return_exceptions=True))[0]

    both, cancelled = asyncio.run(work())
    assert list(both) == [CASE.ids[:5], CASE.ids[:9]]
    assert isinstance(cancelled, asyncio.CancelledError) or len(cancelled.ids) == 136
    assert idle(model)


def test_a_step_that_fails_is_reported_and_dropped(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    want = model.generate(CASE.tokens, max_tokens=4, ignore_end=True)

    def fail(*_: Any) -> Any:
        raise OSError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(model._step, "run", fail)
        with pytest.raises(OSError, match="no room"):
            model.generate(CASE.tokens, max_tokens=4)
    assert model.generate(CASE.tokens, max_tokens=4, ignore_end=True).ids == want.ids
    assert idle(model)


def test_a_prompt_cache_that_finds_no_memory_leaves_answers_as_they_were(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, other = ([(k * i) % 90 + 3 for i in range(70)] for k in (11, 13))
    want = [model.generate(each, max_tokens=4, logprobs=1).choices for each in (prompt, other)]
    model.save_cache(tmp_path / "pages", other)
    pool = model._engine.pool
    puts = iter(range(100))

    def fail(array: Any) -> Any:
        if next(puts) == 1:
            raise MemoryError
        return array

    with monkeypatch.context() as broken:
        broken.setattr(pool, "_put", fail)
        with pytest.raises(MemoryError):
            model.load_cache(tmp_path / "pages")
    for each, choices in zip((prompt, other), want, strict=True):
        assert model.generate(each, max_tokens=4, logprobs=1).choices == choices


def test_a_loop_that_closes_disturbs_no_step(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread may see an open loop that another thread closes right then."""
    loop = asyncio.new_event_loop()
    run = model.stream_async(CASE.tokens, max_tokens=4)
    loop.run_until_complete(anext(aiter(run)))
    loop.run_until_complete(run.close())
    assert idle(model)
    loop.close()
    with monkeypatch.context() as closing:
        closing.setattr(loop, "is_closed", lambda: False)
        run._requests[0].emit(None)


def test_a_closed_model_says_so(folder: Path) -> None:
    model = smelt.llm.load(folder, engine="reference")
    run = model.stream([3, 4], max_tokens=100, ignore_end=True)
    next(iter(run))
    model.close()
    assert run.answer().finish == "cancelled"
    with pytest.raises(RunError, match="closed"):
        model.generate([3], max_tokens=1)


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        ([], {}),
        ([96], {}),
        ([-1], {}),
        ([1.5], {}),
        ([[1, 2]], {}),
        ([[1], [1, 2]], {}),
        ([3] * 160, {}),
        ([3] * 1_000_000, {}),
        ([3], {"max_tokens": -1}),
        ([3], {"stop": ""}),
        ([3], {"temperature": -2.0}),
        ([3], {"hotness": 2.0}),
        ([3], {"n": 0}),
        ([3], {"timeout": -1}),
        ([3], {"stop": 5}),
        ([3], {"client": ["a"]}),
        ([3], {"logit_bias": [3]}),
    ],
)
def test_bad_requests_are_refused(model: LanguageModel, ids: Any, options: dict[str, Any]) -> None:
    with pytest.raises(RunError):
        model.generate(ids, **options)


def test_bad_loads_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="context"):
        smelt.llm.load(folder, context=161)
    with pytest.raises(MemoryLimitError, match="more memory"):
        smelt.llm.load(folder, memory_limit="10KB")
    with pytest.raises(SmeltError, match="precision"):
        smelt.llm.load(folder, precision="f8")
    with pytest.raises(SmeltError, match="keys and values"):
        smelt.llm.load(folder, cache="i8")
    with pytest.raises(FileError, match="no such file or folder"):
        smelt.llm.load(tmp_path / "nothing")
    with pytest.raises(FileError, match="is a folder"):
        smelt.load(tmp_path)
    write_checkpoint(tmp_path, CASE.config, CASE.shapes)
    with smelt.llm.load(tmp_path, engine="reference") as bare:
        assert bare.generate([3, 4], max_tokens=1).text == ""
        for wanted in (lambda: bare.generate("text"), lambda: bare.chat([{"role": "user", "content": "x"}])):
            with pytest.raises(FileError):
                wanted()
    raw = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ParseError, match="the tensors do not fill the file"):
        smelt.llm.load(tmp_path)


def test_weights_that_are_no_numbers_are_reported(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CASE.config, CASE.shapes)
    path = tmp_path / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-4 * 96 * 48 :] = np.full(96 * 48, np.nan, np.float32).tobytes()
    path.write_bytes(raw)
    with smelt.llm.load(tmp_path, engine="reference") as broken, pytest.raises(RunError, match="no numbers"):
        broken.generate([3], max_tokens=1)


# ---- the command line ----


def test_the_command_generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = ",".join(map(str, CASE.tokens))
    generate(folder, None, ids, {"max_tokens": 4}, {"engine": "native"}, True)
    record = json.loads(capsys.readouterr().out)
    assert record["ids"] == CASE.ids[:4]
    assert record["finish"] == "length"
    generate(folder, "w3 w4", "", {"max_tokens": 2}, {"engine": "native"}, False)
    assert capsys.readouterr().out.strip()
    with pytest.raises(RunError):
        generate(folder, None, "1,x", {}, {}, True)


def test_the_command_inspects(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        inspect(folder, [], [], True)
    record = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0
    assert (record["family"], record["unsupported"], record["tokenizer"]) == ("llama", [], {"tokens": 96})
    strange = {**CASE.config, "architectures": ["NewForCausalLM"], "twist": 3}
    write_checkpoint(tmp_path, strange, {**CASE.shapes, "model.layers.0.twist.weight": (4,)})
    with pytest.raises(SystemExit) as stop:
        inspect(tmp_path, [], [], True)
    record = json.loads(capsys.readouterr().out)
    assert stop.value.code == 1
    missing = record["unsupported"][-1]
    assert (missing["fields"], missing["tensors"]) == (["rope_parameters", "twist"], ["model.layers.*.twist.weight"])
    with pytest.raises(SystemExit):
        inspect(tmp_path, [], [], False)
    assert "twist" in capsys.readouterr().out


def test_a_conversation_keeps_what_was_said(
    model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    talk = Conversation(model, "w9", {"max_tokens": 3}, Console(stderr=True))
    talk.say("w7")
    said = capsys.readouterr().out
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant"]
    assert talk.messages[-1]["content"] == said.rstrip("\n")
    assert talk.command(f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text()) == talk.messages
    assert talk.command("/system w10")
    assert talk.messages == [{"role": "system", "content": "w10"}]
    assert talk.command("/help")
    assert not talk.command("/exit")
    started = model.stream

    class Interrupted:
        def __init__(self, *args: Any, **options: Any) -> None:
            self.run = started(*args, **options)
            self.timings, self.close = self.run.timings, self.run.close

        def __iter__(self) -> Iterator[Any]:
            pieces = iter(self.run)
            yield next(pieces)
            yield next(pieces)
            raise KeyboardInterrupt

    monkeypatch.setattr(model, "stream", Interrupted)
    talk.say("w7")  # Ctrl-C after two tokens: the answer so far stays
    assert talk.messages[-1]["role"] == "assistant"
    assert len(talk.messages[-1]["content"].split()) == 2
