"""Program + Weights → Executable: the engines, and how one is chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from smelt.device.pjrt import PLATFORMS
from smelt.device.registry import KINDS, find_device, is_device
from smelt.engine.native import NativeEngine, native_engine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.pjrt_mesh import MeshEngine
from smelt.engine.protocol import Engine, Platform, choose
from smelt.engine.reference import ReferenceEngine
from smelt.engine_api import Executable
from smelt.errors import SmeltError, UnsupportedError
from smelt.ir.core import Program
from smelt.mesh import Mesh

log = logging.getLogger("smelt")

REFERENCE = "engine='reference'"  # the remedy of the native engine, which knows no other engines
# In the order in which `auto` tries them on the CPU.
ENGINES: tuple[Engine[Program], ...] = (NativeEngine(), PjrtEngine(), ReferenceEngine())


def engines(device: str = "auto") -> tuple[Engine[Program], ...]:
    """The engines for a device, in the order in which `auto` tries them: all for the processor, native for what it has
    a device for, pjrt for everything with a plug-in (`cuda`, `cuda:1`)."""
    if device in ("auto", "cpu"):
        return ENGINES
    native = (native_engine(device),) if is_device(device) else ()
    plugged = device.partition(":")[0] in PLATFORMS
    if not (native or plugged):
        known = ", ".join(dict.fromkeys((*KINDS, *PLATFORMS)))
        expected = f"{known}, or one with a number: cuda:1"
        raise UnsupportedError("unknown device", expected=expected, got=device, remedy="smelt devices lists them")
    return (*native, *((PjrtEngine(device),) if plugged else ()))


def platform(
    device: str = "auto", engine: str = "auto", *, isolate: bool = False, mesh: Mesh | None = None
) -> Platform[Program]:
    """The platform of a device name and an engine name.

    `isolate`: run XLA in a worker process, for untrusted programs. `mesh`: several devices through XLA; the CPU is
    split into as many devices as the mesh has.
    """
    named = "cpu" if device == "auto" else device
    if mesh is not None:
        return Platform(named, choose("pjrt" if engine == "auto" else engine, (MeshEngine(named, mesh),)))
    if isolate:
        return Platform(named, choose("pjrt" if engine == "auto" else engine, (PjrtEngine(named, isolate=True),)))
    check_names(device, engine)
    return Platform(named, choose(engine, engines(device)))


def check_names(device: str, engine: str) -> None:
    """Raise where there is no such device, no such engine, or no such engine on the device."""
    here = {each.name for each in engines(device)}
    if engine == "native":
        find_device(device)
    elif engine not in {"auto", *(each.name for each in ENGINES)}:
        expected = f"auto, {', '.join(sorted(here))}"
        raise UnsupportedError("unknown engine", expected=expected, got=engine, remedy='engine="auto"')
    elif engine != "auto" and engine not in here:
        able = ", ".join(sorted(here))
        raise UnsupportedError(f"the engine {engine} does not run on {device}", expected=able, remedy='engine="auto"')


def compile_with_first(
    device: str, engine_name: str, attempt: Callable[[Engine[Program]], Executable]
) -> tuple[Engine[Program], Executable]:
    """The engine of a name, or for `auto` the first that can run the program, and the result of `attempt` with it.

    If that is not the fastest engine, one log line says why.
    """
    if engine_name != "auto":
        chosen = platform(device, engine_name).engine
        return chosen, _attempt(chosen, attempt, device)
    known = engines(device)
    *better, last = [each for each in known if each.missing() is None] or [platform(device).engine]
    refused: list[str] = [f"{each.name}: {each.missing()}" for each in known if each.missing() is not None]
    for engine in better:
        try:
            made = _attempt(engine, attempt, device)
        except UnsupportedError as error:
            refused.append(f"{engine.name}: {_line(error)}")
            continue
        if engine is not known[0]:
            _tell(engine, refused)
        return engine, made
    if last is not known[0]:
        _tell(last, refused)
    return last, _attempt(last, attempt, device)


def _attempt(engine: Engine[Program], attempt: Callable[[Engine[Program]], Executable], device: str) -> Executable:
    """Call `attempt` with an engine. A bug of an engine is reported as such; `auto` does not fall back then."""
    try:
        return attempt(engine)
    except UnsupportedError as error:
        if error.own_remedy == REFERENCE and ReferenceEngine.name not in {each.name for each in engines(device)}:
            error.own_remedy = _find_remedy(engine, device)
        raise
    except (SmeltError, MemoryError):
        raise
    except Exception as error:
        error.add_note(f"a bug of smelt: the {engine.name} engine failed on a valid program; please report it")
        error.add_note("until it is fixed, try engine='reference'")
        raise


def _find_remedy(refusing: Engine[Program], device: str) -> str:
    """What else may run a program that an engine of a device refuses."""
    others = [(each.name, each.missing()) for each in engines(device) if each.name != refusing.name]
    ready = [f"engine='{name}'" for name, why in others if why is None]
    return "; or ".join((*ready, "device='cpu'", *(f"{name}: {why}" for name, why in others if why is not None)))


def _tell(engine: Engine[Program], refused: Sequence[str]) -> None:
    slow = ", which is slow" if engine.name == "reference" else ""
    log.warning("this program runs on the %s engine%s: %s", engine.name, slow, "; ".join(refused))


def _line(error: SmeltError) -> str:
    return " ".join(str(error).split())
