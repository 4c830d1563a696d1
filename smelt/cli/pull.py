"""`smelt pull org/name`: a model's files from the Hugging Face hub into the local store. Nothing else downloads.

What was interrupted goes on where it ended. Only formats that hold data are taken: weights as safetensors, GGUF or
ONNX, configuration, tokenizer and template; never pickles or code.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from smelt.buffer import bytes_text
from smelt.cli.tables import Column, open_console, print_table
from smelt.errors import DeviceError, FileError, SmeltError, UnsupportedError
from smelt.files import write_atomically
from smelt.llm.store import RECORD, is_name, list_models, read_record, store_folder

SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*/config.json")  # configuration, tokenizers, templates
WEIGHTS = ("*.safetensors", "*.gguf", "*.onnx")  # in the order of preference
PARTIAL = ".partial"  # files that are not whole yet
CHUNK = 1 << 20
NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")  # what the hub's client is built on
COLUMNS = (Column("model", True), Column("size"), Column("revision", True), Column("path", True, drop=1))


def pull(name: str, revision: str, pattern: str, as_json: bool) -> None:
    """Download a model into the store, or resume."""
    if not is_name(name):
        raise FileError(
            "no name of a model",
            expected="ORGANISATION/NAME, as on huggingface.co",
            got=name,
            remedy="smelt pull ORGANISATION/NAME",
        )
    hub = _hub()
    quiet = as_json or not sys.stderr.isatty()
    with _explain(name, hub):
        found = hub.HfApi().model_info(name, revision=revision or None, files_metadata=True)
        files = choose({each.rfilename: each.size or 0 for each in found.siblings}, pattern, name)
        digests = {each.rfilename: each.lfs.sha256 if each.lfs else None for each in found.siblings}
        folder = store_folder() / name
        record = {"name": name, "revision": revision or "main", "commit": found.sha, "files": sorted(files)}
        before = read_record(folder)
        fresh = before is not None and all(before.get(key) == value for key, value in record.items())
        if not fresh:
            with _progress(quiet) as bar:
                _download(hub, name, found.sha, folder, {file: digests[file] for file in sorted(files)}, bar)
            text = json.dumps({**record, "bytes": sum(files.values())}, indent=2)
            write_atomically(folder / RECORD, [text.encode()])
    if as_json:
        print(json.dumps({**record, "path": str(folder), "bytes": sum(files.values()), "downloaded": not fresh}))
    else:
        print(f"{name} is {'up to date' if fresh else 'complete'}: {folder}\nTry: smelt chat {name}")


def show_store(as_json: bool) -> None:
    found = list_models()
    if as_json:
        print(json.dumps(found))
        return
    console = open_console()
    if not found:
        console.print(f"No models in {store_folder()}; smelt pull ORGANISATION/NAME", markup=False)
        return
    rows = [(row["name"], bytes_text(row.get("bytes", 0)), row["revision"], row["path"]) for row in found]
    print_table(console, COLUMNS, rows)


def choose(files: dict[str, int], pattern: str, name: str) -> dict[str, int]:
    """The files to take: weights in one format, and all that is small and belongs to them."""

    for file in files:
        if file.startswith("/") or "\\" in file or {"", ".", ".."} & set(file.split("/")):
            raise FileError(
                f"{name} has a file that would be outside its folder", got=file, remedy="do not use this repository"
            )

    def matching(patterns: Sequence[str]) -> dict[str, int]:
        return {file: size for file, size in files.items() if any(fnmatchcase(file, each) for each in patterns)}

    data = matching((*WEIGHTS, "*.onnx_data", "*.onnx.data"))
    if pattern:
        weights = {file: size for file, size in data.items() if fnmatchcase(file, pattern)}
        if not weights:
            raise FileError(
                f"{name} has no weights like {pattern!r}",
                expected=", ".join(sorted(data)) or "none",
                remedy="--file with a pattern of these",
            )
    else:
        kinds = [found for each in WEIGHTS if (found := matching((each,)))]
        if not kinds:
            raise UnsupportedError(
                f"{name} has no weights that smelt reads",
                expected=", ".join(WEIGHTS),
                got=", ".join(sorted(files)[:8]),
                remedy="another repository of the model, with such files",
            )
        weights = kinds[0]
        if next(iter(weights)).endswith(".gguf") and len(weights) > 1:
            raise FileError(
                f"{name} has several models", expected=", ".join(sorted(weights)), remedy="--file '*Q4_K_M.gguf'"
            )
        if next(iter(weights)).endswith(".onnx"):
            weights = data
    return matching(SMALL) | weights


def _download(hub: Any, name: str, commit: str, folder: Path, files: Mapping[str, str | None], bar: Progress) -> None:
    """Each file into a partial one, which is completed by later runs, checked, and renamed. `files`: name → SHA-256."""
    (folder / RECORD).unlink(missing_ok=True)
    partial = folder / PARTIAL / commit
    partial.mkdir(parents=True, exist_ok=True)
    for file, digest in files.items():
        target, part = folder / file, partial / file.replace("/", "--")
        if digest is not None and target.is_file() and _digest(target) == digest:
            continue
        _fetch(hub, hub.hf_hub_url(name, file, revision=commit), part, bar, file)
        if digest is not None and _digest(part) != digest:
            part.unlink()
            raise FileError(f"{file} does not match the checksum of the hub", remedy="try again")
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
    shutil.rmtree(folder / PARTIAL)


def _fetch(hub: Any, url: str, part: Path, bar: Progress, label: str) -> None:
    """The rest of a file."""
    begun = part.stat().st_size if part.exists() else 0
    headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
    if begun:
        headers["Range"] = f"bytes={begun}-"
    with hub.utils.get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        if response.status_code == 416:  # it was whole
            return
        if response.status_code >= 400:
            response.read()
        hub.utils.hf_raise_for_status(response)
        begun = begun if response.status_code == 206 else 0
        length = int(response.headers.get("Content-Length", 0))
        task = bar.add_task(label, total=begun + length, completed=begun)
        with part.open("r+b" if begun else "wb") as out:
            out.seek(begun)
            for piece in response.iter_bytes(CHUNK):
                out.write(piece)
                out.flush()  # what came stays, however the process ends
                bar.advance(task, len(piece))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _progress(quiet: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=quiet)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise UnsupportedError(
            "pulling needs the package huggingface_hub", remedy='pip install "smelt[hub]"'
        ) from error
    return huggingface_hub


@contextmanager
def _explain(name: str, hub: Any) -> Iterator[None]:
    """The hub's errors as ours."""
    errors = hub.errors
    try:
        yield
    except SmeltError:
        raise
    except errors.GatedRepoError as error:
        raise DeviceError(
            f"{name} is open only to those who accepted its terms", remedy="accept them on huggingface.co; HF_TOKEN=…"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileError(
            f"the hub has no model {name!r}", remedy="check the name; private ones need HF_TOKEN"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileError(f"{name} has no such revision", remedy="a branch, a tag or a commit") from error
    except Exception as error:
        library = type(error).__module__.partition(".")[0]
        if not isinstance(error, errors.HfHubHTTPError | OSError) and library not in NETWORK:
            raise
        got = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DeviceError(f"{name} could not be pulled", got=got, remedy="try again: it goes on") from error
