"""Language models in bundles: the same bits as the checkpoint's, without the compiler; and files that say anything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.bundle.write import write
from smelt.cli.compile import compile_model
from smelt.cli.generate import generate
from smelt.cli.inspect import inspect
from smelt.cli.run import run
from smelt.errors import FileError, MemoryLimitError, ParseError, RunError, SmeltError, UnsupportedError
from smelt.llm import LanguageModel
from smelt.llm.config import Config, Experts, Layer, Rope
from smelt.llm.stored import LANGUAGE, TOKENIZER
from smelt.llm.typed_record import from_record, to_record
from smelt.run.load import read_stored
from smelt.serve.config import ModelConfig
from smelt.serve.isolation.remote import Zygote
from smelt.serve.models import _open, find
from smelt.serve.text_model import LocalTexts
from tests.hostile.bundle_fuzz import _twist
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.serve.client import serving

CASE = Case.load(FIXTURE)[0]
WORDS = ["<unk>", *(f"w{i}" for i in range(1, 96))]
TEMPLATE = "{% for m in messages %}w5 {{ m.content }} {% endfor %}w6"
MESSAGES = [{"role": "user", "content": "w7"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    write_checkpoint(path, CASE.config, CASE.shapes)
    write_vocabulary(path / "tokenizer.json", WORDS)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2]}))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, engine="native") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def saved(model: LanguageModel, folder: Path) -> Path:
    path = folder.with_name("tiny.smelt")
    model.save(path)
    return path


def test_a_bundle_computes_the_same_bits(model: LanguageModel, saved: Path, tmp_path: Path) -> None:
    with smelt.load(saved) as found:
        assert isinstance(found, LanguageModel)
        assert (found.name, found.context, found.config) == ("tiny", model.context, model.config)
        np.testing.assert_array_equal(found.logits(CASE.tokens), model.logits(CASE.tokens))
        assert found.chat(MESSAGES, max_tokens=9).ids == model.chat(MESSAGES, max_tokens=9).ids
        assert found.generate("w3 w4", max_tokens=6).text == model.generate("w3 w4", max_tokens=6).text
        np.testing.assert_array_equal(found.embed(["w3 w4"]), model.embed(["w3 w4"]))
        long = [3] * 70
        model.save_cache(tmp_path / "prompt.cache", long)
        assert found.load_cache(tmp_path / "prompt.cache") == 64
        found.save(tmp_path / "again.smelt")
    assert (tmp_path / "again.smelt").read_bytes() == saved.read_bytes()


def test_options_of_a_bundle(saved: Path) -> None:
    with smelt.llm.load(saved, context=20, sequences=2) as found:
        assert found.context == 20
        with pytest.raises(RunError, match="too many tokens"):
            found.logits(list(range(1, 22)))
    with pytest.raises(MemoryLimitError):
        smelt.load(saved, memory_limit="100KB")
    with smelt.load(saved, memory_limit="200MB", context=64) as found:
        assert len(found.generate([3, 4], max_tokens=4).ids) == 4  # type: ignore[attr-defined]
    for options in ({"precision": "q8"}, {"engine": "pjrt"}, {"context": 0}, {"sequences": 0}, {"cache": "f32"}):
        with pytest.raises(SmeltError):
            smelt.llm.load(saved, **options)


def test_other_bundles_are_no_language_models(tmp_path: Path) -> None:
    path = tmp_path / "digits.smelt"
    smelt.load(Path(smelt.__file__).parent / "assets" / "digits.onnx").save(path)
    with pytest.raises(UnsupportedError, match="no language model"):
        smelt.llm.load(path)
    with pytest.raises(UnsupportedError, match="has no option context"):
        smelt.load(path, context=4)


def test_other_engines_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    with smelt.llm.load(folder, engine="reference") as other, pytest.raises(UnsupportedError, match="cannot be saved"):
        other.save(tmp_path / "x.smelt")


def test_a_bundle_runs_without_what_compiles(saved: Path) -> None:
    script = """
import sys
import smelt
with smelt.load(sys.argv[1]) as model:
    assert len(model.generate("w3 w4", max_tokens=3).ids) == 3
    model.chat([{"role": "user", "content": "w7"}], max_tokens=2)
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("smelt.")}
print(*sorted(rooms & {"ir", "passes", "kernel", "engine", "tensor", "model"}))
"""
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(Path(smelt.__file__).parents[1]), "SMELT_CACHE": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_signatures(model: LanguageModel, saved: Path, tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    private = ed25519.Ed25519PrivateKey.generate()
    key = tmp_path / "key"
    key.write_bytes(private.private_bytes_raw())
    public = private.public_key().public_bytes_raw().hex()
    path = tmp_path / "signed.smelt"
    write(path, read_stored(saved), key)
    with smelt.load(path, keys=[public]) as found:
        assert isinstance(found, LanguageModel)
    with pytest.raises(FileError):
        smelt.load(saved, keys=[public])


def test_commands(folder: Path, tmp_path: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.smelt"
    compile_model(folder, path, ["plain"], [], [], None, True)
    assert json.loads(capsys.readouterr().out)["targets"] == ["plain"]
    generate(path, "w3 w4", "", {"max_tokens": 5}, {}, True)
    assert json.loads(capsys.readouterr().out)["ids"] == list(model.generate("w3 w4", max_tokens=5).ids)
    inspect(path, [], [], True)
    assert LANGUAGE in json.loads(capsys.readouterr().out)["files"]
    with serving(ModelConfig(str(path))) as client:  # its code runs in a worker
        asked = {"model": "made", "prompt": "w3 w4", "temperature": 0, "max_tokens": 5}
        said = client.post("/v1/completions", asked).json["choices"][0]["text"]
        assert said == model.generate("w3 w4", max_tokens=5).text
    (version,) = find(ModelConfig(str(path), trusted=True))  # its code runs in the server
    _open(version, Zygote())
    assert version.language
    assert isinstance(version.loaded, LocalTexts)
    version.loaded.close()
    with pytest.raises(SmeltError, match="no sizes"):
        compile_model(folder, path, [], ["S=1"], [], None, True)
    with pytest.raises(UnsupportedError, match="is a language model") as refused:
        run(path, ["random"], [], "auto", "auto", 0, None, True)
    assert refused.value.remedy == f"smelt generate {path} PROMPT"


def forge(saved: Path, path: Path, **files: Callable[[bytes], bytes] | None) -> Path:
    """The bundle with other files."""
    stored = read_stored(saved)
    made = dict(stored.files)
    for name, change in files.items():
        key = f"{name}.json"
        if change is None:
            del made[key]
        else:
            content = change(stored.files[key]())
            made[key] = lambda content=content: content  # type: ignore[misc]
    write(path, stored.replace(files=made))
    return path


def _instead(content: bytes, _: bytes) -> bytes:
    return content


def change(**fields: Any) -> Callable[[bytes], bytes]:
    """Other fields of the configuration."""

    def apply(content: bytes) -> bytes:
        record = json.loads(content)
        record["config"].update(fields)
        return json.dumps(record).encode()

    return apply


@pytest.mark.parametrize(
    "lie",
    [
        *({"v": 95}, {"v": 97}, {"kv_heads": 1}, {"head_size": 8}, {"d": 1}, {"layers": []}, {"stop": [96]}),
        *({"stop": [-1]}, {"context": 0}, {"context": 1 << 60}, {"context": 1.5}, {"family": None}, {"scale": None}),
        *({"extra": 1}, {"epsilon": 10**400}),
    ],
)
def test_what_a_bundle_says_is_compared_with_its_program(saved: Path, tmp_path: Path, lie: dict[str, Any]) -> None:
    with pytest.raises(FileError):
        smelt.load(forge(saved, tmp_path / "x.smelt", language=change(**lie)))


def test_damaged_texts(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.smelt"
    lacking = {
        name: each for name, each in json.loads(read_stored(saved).files[LANGUAGE]()).items() if name != "pooling"
    }
    for content in (
        json.dumps(lacking).encode(),
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": 2}',
        b'{"format": NaN}',
    ):
        with pytest.raises(FileError):
            smelt.load(forge(saved, path, language=partial(_instead, content)))
    with smelt.load(forge(saved, path, tokenizer=lambda _: b"{}")) as found, pytest.raises(ParseError):
        found.generate("w3")  # type: ignore[attr-defined]
    with smelt.load(forge(saved, path, tokenizer=lambda _: b"\xff")) as found, pytest.raises(FileError):
        found.generate("w3")  # type: ignore[attr-defined]
    with smelt.load(forge(saved, path, tokenizer=None)) as found:
        assert len(found.generate([3, 4], max_tokens=2).ids) == 2  # type: ignore[attr-defined]
        with pytest.raises(FileError, match="no tokenizer"):
            found.generate("w3")  # type: ignore[attr-defined]


def test_forged_descriptions_are_refused_or_harmless(saved: Path, tmp_path: Path, seed: int) -> None:
    choose = Random(seed)
    refused = 0
    for _ in range(60):

        def twist(content: bytes) -> bytes:
            record = json.loads(content)
            parts = [record, record["config"], record["pooling"]]
            for _ in range(choose.randint(1, 3)):
                _twist(choose.choice(parts), choose)
            return json.dumps(record).encode()

        try:
            with smelt.load(forge(saved, tmp_path / "x.smelt", language=twist)) as found:
                found.generate([3, 4], max_tokens=2)  # type: ignore[attr-defined]
                found.chat(MESSAGES, max_tokens=1)  # type: ignore[attr-defined]
                found.embed([[3, 4]])  # type: ignore[attr-defined]
        except SmeltError:
            refused += 1
    assert refused > 20


def test_records_go_there_and_back() -> None:
    rope = Rope((1.0, 0.1 + 0.2), 1.5, True)
    layers = (Layer(rope, 7, Experts(8, 2, 16, True)), Layer(None))
    config = Config("x", layers, 1, 2, 3, 4, 5, 6, 7, 1e-5, "silu", 0.125, stop=(1, 2), bos=None)
    assert from_record(Config, json.loads(json.dumps(to_record(config)))) == config
    assert {LANGUAGE, TOKENIZER} == {"language.json", "tokenizer.json"}
