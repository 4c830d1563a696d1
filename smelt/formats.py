"""The format of a model, by its first bytes, and advice for formats that smelt does not read.

`smelt.load` calls it for bytes and file objects, `smelt.model` for files with an unknown suffix.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from smelt.errors import FileError, UnsupportedError

if TYPE_CHECKING:
    import tempfile

# The first bytes of a format, where they start, and the usual ending of its files.
_SIGNATURES = (
    (0, b"\x89SMELT\r\n", ".smelt"),
    (0, b"smelt pjrt", ".smelt"),
    (0, b"ML\xefR", ".mlirbc"),
    (0, b"GGUF", ".gguf"),
    (0, b"PK\x03\x04", ".pt"),
    (0, b"\x89HDF\r\n\x1a\n", ".h5"),
    (4, b"TFL3", ".tflite"),
    (8, b'{"', ".safetensors"),
)
_TORCH = 'torch.onnx.export(model, inputs, "model.onnx", dynamo=True) writes the program with its weights'
_TENSORFLOW = "python -m tf2onnx.convert --{flag} {path} --output model.onnx"
_ADVICE = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), ("a PyTorch checkpoint", _TORCH)),
    ".pt2": ("a program of torch.export", 'torch.onnx.export(torch.export.load("{path}"), …) writes it as ONNX'),
    ".safetensors": (
        "weights without a program",
        'smelt.open("{path}") reads them; smelt.load(FOLDER) takes a Hugging Face folder with its config.json',
    ),
    ".npz": ("weights without a program", 'smelt.open("{path}") reads them'),
    ".gguf": ("a language model", 'smelt.load("{path}"), or smelt generate {path} PROMPT'),
    ".h5": ("a Keras model", _TENSORFLOW.replace("{flag}", "keras")),
    ".keras": ("a Keras model", 'model.export("model.onnx", format="onnx")'),
    ".tflite": ("a TensorFlow Lite model", _TENSORFLOW.replace("{flag}", "tflite")),
    ".pb": ("a TensorFlow graph", _TENSORFLOW.replace("{flag}", "graphdef") + " --inputs … --outputs …"),
}


def format_of(data: bytes) -> str:
    """The usual suffix of files with this content."""
    for start, signature, suffix in _SIGNATURES:
        if data[start : start + len(signature)] == signature:
            return suffix
    if _is_text(data):
        return ".mlir"
    # A flatbuffer (jax.export) begins with the offset of its root table. In a protobuf message (ONNX) these four bytes
    # hold a tag, a value and another tag: a number beyond 1 << 16.
    root = int.from_bytes(data[:4], "little")
    return ".jaxexport" if 4 <= root < min(len(data), 1 << 16) and root % 4 == 0 else ".onnx"


def _is_text(data: bytes) -> bool:
    try:
        text = data[:4096].decode()
    except UnicodeDecodeError as error:
        if error.start < 4090 or len(data) <= 4096:  # else a character that was cut
            return False
        text = data[: error.start].decode()
    return bool(text.strip()) and all(mark.isprintable() or mark.isspace() for mark in text)


def unsupported(path: str | os.PathLike[str], suffix: str, known: str) -> UnsupportedError:
    """The error for a file of a format that is no model format of ours."""
    kind, advice = _ADVICE.get(suffix, ("", "export the model as ONNX, or rename the file to the ending of its format"))
    message = f"{path} is {kind}, not a model file" if kind else "unknown model format"
    got = suffix or os.path.basename(path)
    return UnsupportedError(
        message, expected=known, got=got, where=None if kind else path, remedy=advice.replace("{path}", str(path))
    )


def absent(path: str | os.PathLike[str], known: str) -> FileError:
    """The error for a path that is no file: a folder, or nothing."""
    text = os.fspath(path)
    if os.path.lexists(text) and not os.path.isdir(text):
        got = "a link that leads nowhere" if not os.path.exists(text) else "a device, a pipe or a socket"
        return FileError(f"{text} is no regular file", expected="a path to a model", got=got, remedy="give a file")
    if not os.path.isdir(text):
        return FileError("no such file", expected="a path to a model", got=path, remedy=_suggest_path(text))
    names = sorted(os.listdir(text))
    if "config.json" in names:
        remedy = f'smelt.load("{text}") runs it as a language model, as smelt generate does'
        return FileError(f"{text} is a Hugging Face folder", expected="a model file", got="a folder", remedy=remedy)
    if "saved_model.pb" in names:
        remedy = _TENSORFLOW.replace("{flag}", "saved-model").replace("{path}", text)
        return FileError(f"{text} is a TensorFlow SavedModel", expected="a model file", got="a folder", remedy=remedy)
    models = [name for name in names if os.path.splitext(name)[1].lower() in known.split(", ")]
    remedy = f"give {os.path.join(text, models[0])}" if models else "give a file in it, or a folder with config.json"
    return FileError(f"{text} is a folder", expected="a model file", got="a folder", remedy=remedy)


def _suggest_path(path: str) -> str:
    """The remedy for a path that does not exist: the file with the closest name, of the same format if there is one."""
    from difflib import get_close_matches

    folder, name = os.path.split(path)
    if not os.path.isdir(folder or os.curdir):
        return f"the folder {folder} does not exist: check the path"
    names = sorted(os.listdir(folder or os.curdir))
    same_format = [each for each in names if os.path.splitext(each)[1] == os.path.splitext(name)[1]]
    found = get_close_matches(name, same_format, 1) or get_close_matches(name, names, 1)
    return f"did you mean {os.path.join(folder, found[0])}?" if found else f"check the path, seen from {os.getcwd()}"


def spool(source: Any) -> tuple[tempfile.TemporaryDirectory[str], str]:
    """Bytes, or what a file object still holds, as a file with the ending of its format; it goes with the folder."""
    import tempfile

    data = source.read() if hasattr(source, "read") else source
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise FileError(
            "this is no model",
            expected="a path, bytes, or a file that is open for reading",
            got=type(data).__name__,
            remedy='smelt.load("model.onnx"), or smelt.load(open("model.onnx", "rb"))',
        )
    folder = tempfile.TemporaryDirectory(prefix="smelt-", ignore_cleanup_errors=True)
    path = os.path.join(folder.name, f"model{format_of(bytes(data[: 1 << 16]))}")
    with open(path, "wb") as file:
        file.write(data)
    return folder, path
