"""CUDA → machine code (cubin) through NVRTC, which needs no GPU and no driver. `device.cuda` calls it.

Floating point is strict: no contraction of a product and a sum, no flushing of small numbers, exact division and roots.
"""

from __future__ import annotations

from typing import Any

from smelt.errors import DeviceError

FLAGS: tuple[str, ...] = (
    "--std=c++17",
    "-default-device",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-w",
)
OWN = {"sm_90": "sm_90a"}  # with the instructions that only this generation has (wgmma)
REMEDY = 'pip install "smelt[cuda]"'


def missing() -> str | None:
    """Why nothing can be compiled here, with the remedy."""
    try:
        version()
    except DeviceError as error:
        return str(error.got)
    return None


def missing_chip(capability: tuple[int, int]) -> str | None:
    """Why nothing can be compiled for a chip: it is newer than NVRTC."""
    api, (major, minor) = _api(), capability
    known = _check(api, api.nvrtcGetSupportedArchs(), "asking for the chips")
    if 10 * major + minor in known:
        return None
    return f"{version()} makes no code for sm_{major}{minor}: pip install --upgrade nvidia-cuda-nvrtc"


def version() -> str:
    """NVRTC's version."""
    return "NVRTC {}.{}".format(*version_numbers())


def version_numbers() -> tuple[int, int]:
    api = _api()
    try:
        status, major, minor = api.nvrtcVersion()
    except Exception as error:  # the library could not be opened: the type differs between versions
        raise DeviceError("NVRTC cannot be used", got=f"no NVRTC library: {REMEDY}") from error
    _check(api, (status,), "asking for the version")
    return int(major), int(minor)


def compile_cuda(text: str, machine: str) -> bytes:
    """The machine code of a text for a machine such as `sm_90`."""
    return _compile(text, OWN.get(machine, machine), "CUBIN")


def compile_ptx(text: str, machine: str) -> bytes:
    """PTX, which drivers compile for a machine and all later ones."""
    return _compile(text, machine.replace("sm_", "compute_"), "PTX")


def _compile(text: str, machine: str, form: str) -> bytes:
    api = _api()
    version()
    program = _check(api, api.nvrtcCreateProgram(text.encode(), b"smelt.cu", 0, [], []), "reading the source")
    try:
        options = [each.encode() for each in (f"--gpu-architecture={machine}", *FLAGS)]
        (status,) = api.nvrtcCompileProgram(program, len(options), options)
        if status != api.nvrtcResult.NVRTC_SUCCESS:
            raise DeviceError(
                f"NVRTC could not compile the program for {machine}", got=_log(api, program)[-2000:], remedy=REMEDY
            )
        size = _check(api, getattr(api, f"nvrtcGet{form}Size")(program), "asking for the code's size")
        code = bytes(size)
        _check(api, getattr(api, f"nvrtcGet{form}")(program, code), "fetching the code")
        return code
    finally:
        api.nvrtcDestroyProgram(program)


def _log(api: Any, program: Any) -> str:
    size = _check(api, api.nvrtcGetProgramLogSize(program), "asking for the log")
    log = bytes(size)
    _check(api, api.nvrtcGetProgramLog(program, log), "fetching the log")
    return log.rstrip(b"\0").decode(errors="replace").strip()


def _api() -> Any:
    try:
        import cuda.bindings  # noqa: F401
    except ImportError as error:
        got = f"the package cuda-bindings is not installed: {REMEDY}"
        raise DeviceError("NVRTC cannot be used", got=got) from error
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceError("NVRTC cannot be used", got=f"no NVRTC in cuda-bindings ({error}): {REMEDY}") from error
    return nvrtc


def _check(api: Any, answer: tuple[Any, ...], what: str) -> Any:
    status, *found = answer
    if status != api.nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"NVRTC: {what} failed", got=str(status), remedy=REMEDY)
    return found[0] if found else None
