"""Encoders give the vectors of transformers and sentence-transformers (recorded), and refuse what they do not know."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.bundle.stored import StoredModel
from smelt.bundle.write import write
from smelt.cli.compile import compile_model
from smelt.cli.embed import embed
from smelt.cli.inspect import inspect
from smelt.errors import FileError, MemoryLimitError, RunError, SmeltError, UnsupportedError
from smelt.llm import EmbeddingModel
from smelt.llm.stored import LANGUAGE
from smelt.read import safetensors
from smelt.run.load import read_stored
from tests.hostile.bundle_fuzz import _twist
from tests.llm_checkpoints import ENCODERS, FIXTURE, Case, weight, write_checkpoint
from tests.llm_gguf import write_vocabulary

CASES = ("bert", "roberta", "xlm-roberta")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLD = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}


def write_folder(folder: Path, case: str, modules: list[tuple[str, str]], pooling: dict[str, Any]) -> dict[str, Any]:
    """A folder as sentence-transformers writes it; what was recorded for the case."""
    with np.load(ENCODERS) as file:
        record = json.loads(file[f"{case}/record"].tobytes())
        found = {**record, **{key.partition("/")[2]: file[key] for key in file if key.startswith(f"{case}/")}}
    write_checkpoint(folder, record["config"], {key: tuple(sizes) for key, sizes in record["shapes"].items()})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **pooling}))
    listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    return found


PLAIN = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]


@pytest.mark.parametrize(("case", "engine"), [*((case, "reference") for case in CASES), ("roberta", "native")])
def test_vectors_are_those_of_sentence_transformers(case: str, engine: str, tmp_path: Path) -> None:
    for mode in MODES if engine == "reference" else MODES[:1]:
        pooling = {f"pooling_mode_{OLD[mode]}": True} if mode in OLD else {"pooling_mode": mode}
        want = write_folder(tmp_path, case, PLAIN, pooling)
        loaded: object = smelt.load(tmp_path, engine=engine)
        assert isinstance(loaded, EmbeddingModel)
        with loaded as model:
            np.testing.assert_allclose(model.embed(want["lists"]), want[mode], rtol=1e-4, atol=2e-5)


def test_an_encoder_keeps_to_a_memory_limit(tmp_path: Path) -> None:
    write_folder(tmp_path, "bert", PLAIN, {"pooling_mode_mean_tokens": True})
    for engine, limit in (("native", "1MB"), ("reference", "10KB")):  # only native counts batches
        with pytest.raises(MemoryLimitError, match="more memory than the limit"):
            smelt.llm.load(tmp_path, engine=engine, memory_limit=limit)
    with smelt.llm.load(tmp_path, engine="reference", memory_limit="1GB") as model:
        assert model.embed([[1, 2]]).shape == (1, 48)
    wrong: dict[str, Any]
    for wrong in ({"cache": "int8"}, {"context": "5"}, {"devices": 2}):
        with pytest.raises(SmeltError):
            smelt.llm.load(tmp_path, engine="reference", **wrong)


def test_a_bundle_embeds_without_what_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    folder, file = tmp_path / "tiny", tmp_path / "x.smelt"
    modules = [*PLAIN, ("2", "sentence_transformers.models.Normalize")]
    want = write_folder(folder, "bert", modules, {"pooling_mode_mean_tokens": True})
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "w9 w8 "}}))
    write_vocabulary(folder / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    with pytest.raises(UnsupportedError, match="f32"):
        compile_model(folder, file, [], [], [], None, True, "q8")
    compile_model(folder, file, [], [], [], None, True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bundle"] == str(file)
    script = """
import json, sys
import smelt
with smelt.load(sys.argv[1]) as model:
    found = [model.embed(json.loads(sys.argv[2])), model.embed("w5", prompt="query"), model.embed([[9, 8, 5]])]
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("smelt.")}
rooms &= {"ir", "passes", "kernel", "engine", "tensor"}
print(json.dumps([repr(model), *(each.tolist() for each in found), *rooms]))
"""
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(Path(smelt.__file__).parents[1]), "SMELT_CACHE": "/nowhere"}
    lists = json.dumps(np.asarray(want["lists"], object).tolist())
    command = [sys.executable, "-c", script, str(file), lists]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    shown, vectors, prompted, same, *rooms = json.loads(done.stdout)
    assert (shown.partition(":")[0], rooms) == ("<tiny", [])
    mean = want["mean"] / np.linalg.norm(want["mean"], axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, mean, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(prompted, same, rtol=1e-5, atol=1e-6)
    with pytest.raises(RunError, match="such a context"):
        smelt.load(file, context=1000)
    bundle = read_stored(file)
    config, pooling = (_read_record(bundle)[name] for name in ("config", "pooling"))
    layers = [[5, 47], [-1, 47], [47, 5], [5, 47, 1], [1 << 80, 1]]  # rows and columns; 5 × 48 would fit
    changes: list[dict[str, Any]] = [
        *({"config": {}}, {"pooling": 3}, {"config": {**config, "d": 40}}, {"pairs": True}),
        {"config": {**config, "epsilon": 10**400}},
        *({"pooling": {**pooling, "steps": [["Tanh", sizes]]}} for sizes in layers),
    ]
    arrays = {"pooling 0 matrix": bytes(8 * 5 * 47), "pooling 0 bias": bytes(8 * 5)}
    files: dict[str, Any] = {name: lambda content=content: content for name, content in arrays.items()}

    def load(record: dict[str, Any]) -> Any:
        text = json.dumps(record).encode()
        write(tmp_path / "bad.smelt", bundle.replace(files={**bundle.files, **files, LANGUAGE: lambda: text}), None)
        return smelt.load(tmp_path / "bad.smelt")

    for change in changes:
        with pytest.raises(FileError, match=r"language\.json|does not fit"):
            load({**_read_record(bundle), **change})
    choose = Random(seed)
    for _ in range(40):
        record = _read_record(bundle)
        _twist(choose.choice([record, record["config"], record["pooling"]]), choose)
        with suppress(SmeltError), load(record) as model:
            model.embed(["w5", [9, 8, 5]])


def _read_record(bundle: StoredModel) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bundle.files[LANGUAGE]())
    return found


def test_dense_layers_and_norms_follow(tmp_path: Path) -> None:
    modules = [
        *PLAIN,
        ("2_Dense", "sentence_transformers.models.Dense"),
        ("3", "sentence_transformers.models.Normalize"),
    ]
    want = write_folder(tmp_path, "bert", modules, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    arrays = {"linear.weight": weight("linear.weight", (10, 96)), "linear.bias": weight("linear.bias", (10,))}
    safetensors.write(tmp_path / "2_Dense" / "model.safetensors", arrays)
    model: Any
    with smelt.llm.load(tmp_path, engine="reference") as model:
        np.testing.assert_allclose(model.embed(want["lists"]), want["dense"], rtol=1e-4, atol=2e-5)
    for name, sizes in (("linear.weight", (10, 48)), ("linear.bias", (9,)), ("linear.weight", (10,))):
        safetensors.write(tmp_path / "2_Dense" / "model.safetensors", {**arrays, name: weight(name, sizes)})
        with pytest.raises(FileError, match="a layer behind the encoder does not fit"):
            smelt.llm.load(tmp_path, engine="reference")


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_decoder_embeds_by_its_last_layer(engine: str, tmp_path: Path) -> None:
    case = next(case for case in Case.load(FIXTURE) if case.name == "qwen3")
    write_checkpoint(tmp_path, case.config, case.shapes)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    listed = [{"path": path, "type": kind} for path, kind in [*PLAIN, ("2", "sentence_transformers.models.Normalize")]]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with np.load(ENCODERS) as file, smelt.llm.load(tmp_path, engine=engine) as model:
        got = model.embed([case.tokens[:count] for count in (1, 9, 24)])
        np.testing.assert_allclose(got, file["qwen3/lasttoken"], rtol=1e-4, atol=1e-5)
        assert model.embed([]).shape == (0, 48)
        assert model._engine.pool.pages.held == 0


def test_texts_prompts_and_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path, "bert", PLAIN, {"pooling_mode_mean_tokens": True})
    write_vocabulary(tmp_path / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 4, "do_lower_case": True}))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "w9 w8 "}}))
    model: Any
    with smelt.llm.load(tmp_path, engine="reference") as model:
        vectors = model.embed(["w5 W6", "w5 w6 w7 w8 w9", "w9"])
        np.testing.assert_allclose(vectors[0], model.embed([[5, 6]])[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(vectors[1], model.embed([[5, 6, 7, 8]])[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            model.embed("w5", prompt="query")[0], model.embed([[9, 8, 5]])[0], rtol=1e-5, atol=1e-6
        )
        assert model.embed([]).shape == (0, 48)
        for bad in (
            lambda: model.embed(["w5"], prompt="other"),
            lambda: model.embed([[96]]),
            lambda: model.embed([[]]),
            lambda: model.embed([["w5"]]),
            lambda: model.embed([[1.5]]),
            lambda: model.embed([None]),
        ):
            with pytest.raises(RunError):
                bad()
        with pytest.raises(UnsupportedError, match="encoder"):
            model.generate("w5")
    for as_json in (True, False):
        with pytest.raises(SystemExit) as stop:
            inspect(tmp_path, [], [], as_json)
        assert stop.value.code == 0
        shown = capsys.readouterr().out
        assert "mean" in shown
    embed(tmp_path, ["w5 w6"], None, {"engine": "reference"}, True)
    record = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(record["embeddings"][0], vectors[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"config.json": {"position_embedding_type": "relative_key"}},
        {"config.json": {"twist": 3}},
        {"modules.json": [{"path": "../..", "type": "Pooling"}]},
        {"modules.json": [{"path": "", "type": "sentence_transformers.models.WordWeights"}]},
        {"modules.json": ["Pooling"]},
        {"1_Pooling/config.json": {"pooling_mode": "median"}},
        {"1_Pooling/config.json": {"include_prompt": False}},
        {"1_Pooling/config.json": {"pooling_mode": 3}},
        {"1_Pooling/config.json": {"pooling_mode": [["mean"]]}},
        {"config.json": {"model_type": ["bert"]}},
        {"modules.json": [{"path": "a\0b", "type": "Pooling"}]},
        {"modules.json": [{"path": "wide", "type": "Dense"}]},
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    write_folder(tmp_path, "bert", PLAIN, {"pooling_mode_mean_tokens": True})
    (tmp_path / "wide").mkdir()
    safetensors.write(tmp_path / "wide" / "model.safetensors", {"linear.weight": weight("linear.weight", (4, 96))})
    for name, said in change.items():
        old = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps(said if isinstance(said, list) else {**old, **said}))
    with pytest.raises(SmeltError):
        smelt.llm.load(tmp_path, engine="reference")
