"""The models of a server: paths → names and versions; loading, warm-up, unloading, hot-swap of versions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.activity import count_compiles
from smelt.buffer import type_text
from smelt.dtype import Array
from smelt.engine_api import Port
from smelt.errors import FileError, SmeltError, UnsupportedError
from smelt.llm.store import resolve
from smelt.model import FORMATS, LoadedModel
from smelt.run.load import SUFFIX
from smelt.serve.budget import Budget, estimate, measure
from smelt.serve.config import NAME, ModelConfig, read_model_config
from smelt.serve.isolation.remote import RemoteModel, Zygote, is_supported
from smelt.serve.isolation.remote_queue import RemoteQueue
from smelt.serve.isolation.remote_texts import RemoteTexts
from smelt.serve.kernels import SampledModel
from smelt.serve.opening import (
    held_bytes,
    is_language,
    open_model,
    open_texts,
    stop_compiling,
    warm_up,
    why_not_batched,
)
from smelt.serve.pipeline import SUFFIX as PYTHON
from smelt.serve.pipeline import Pipeline, PipelineQueue, is_pipeline, read_steps
from smelt.serve.problems import NotFoundError, RequestError, UnavailableError
from smelt.serve.queue import Limits, ModelQueue
from smelt.serve.sequences import Sequences, check_state
from smelt.serve.stats import ModelStats, Sample
from smelt.serve.step import ModelStep
from smelt.serve.tensors import datatype
from smelt.serve.text_model import About, TextModel
from smelt.shape import Shape
from smelt.size import Size
from smelt.stop import Cancel

log = logging.getLogger("smelt.serve")
FILES = (*FORMATS, SUFFIX)
LOADING, READY, UNAVAILABLE = "LOADING", "READY", "UNAVAILABLE"
ON_DEMAND = "it is loaded on demand"
MOST_FITTING = 256  # kinds of inputs that are remembered
TENSOR_MODELS = (LoadedModel, RemoteModel, Pipeline)


@dataclass(slots=True, eq=False)
class Version:
    """One version of a model: where it is, whether it can be called, and what it did."""

    name: str
    version: str
    path: Path
    config: ModelConfig
    language: bool  # a language model; of a bundle known when it is loaded
    state: str = UNAVAILABLE
    reason: str = "not loaded"
    loaded: Any = None  # LoadedModel, RemoteModel, Pipeline or TextModel
    about: About | None = None  # a language model, since it was first loaded
    queue: ModelQueue | PipelineQueue | None = None
    stats: ModelStats = field(default_factory=ModelStats)
    batching: str = ""  # why requests do not share calls
    seconds: float = 0.0  # to load
    bytes: int = 0  # of memory, while it is loaded
    file_bytes: int = 0  # what its files say about that
    used: float = 0.0  # when it was last used, on `monotonic`
    on_demand: bool = False  # not loaded, to save memory; the next request loads it
    keep_alive: float | None = None  # seconds after its last use for which it stays loaded; None: for ever
    expiry: asyncio.TimerHandle | None = None  # when that is looked at
    sequences: Sequences | None = None  # of a model with state
    fitting: set[Any] = field(default_factory=set)  # names, element types and shapes of inputs that were checked

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What clients give: not the state of sequences."""
        ports = self.loaded.signature.inputs if isinstance(self.loaded, TENSOR_MODELS) else ()
        return tuple(port for port in ports if port.name not in self.config.state) if self.config.state else ports

    @property
    def outputs(self) -> tuple[Port, ...]:
        ports = self.loaded.signature.outputs if isinstance(self.loaded, TENSOR_MODELS) else ()
        kept = self.config.state.values()
        return tuple(port for port in ports if port.name not in kept) if kept else ports

    @property
    def isolated(self) -> bool:
        """Whether it runs in a process of its own."""
        return not self.config.trusted and is_supported()

    @property
    def worker(self) -> RemoteModel | None:
        """The process that it runs in, if it is another one."""
        return self.loaded if isinstance(self.loaded, RemoteModel) else getattr(self.loaded, "worker", None)

    @property
    def layers(self) -> Sequence[str]:
        """The layers of the sandbox that it runs in."""
        return () if self.worker is None else self.worker.layers

    @property
    def active(self) -> int:
        """Running requests of a language model."""
        return self.loaded.running if isinstance(self.loaded, TextModel) else 0

    @property
    def callable(self) -> bool:
        """Whether a request is answered: now, or after loading."""
        return self.state == READY or self.on_demand

    def estimate(self) -> int:
        """Bytes that it will take; a pipeline has no weights of its own."""
        return 0 if is_pipeline(self.config, self.path) else estimate(self.path)

    @property
    def idle(self) -> bool:
        return not self.active and (self.queue is None or not (self.queue.waiting or self.queue.running))

    def set_keep_alive(self, seconds: float | None) -> None:
        if self.expiry is not None:
            self.expiry.cancel()
        self.keep_alive, self.expiry = seconds, None

    def metadata(self, versions: list[str]) -> dict[str, Any]:
        """The protocol's model metadata."""
        platform = "smelt_language_model" if self.language else f"smelt_{self.loaded.engine}"
        described = [[_describe(port) for port in ports] for ports in (self.inputs, self.outputs)]
        return {
            "name": self.name,
            "versions": versions,
            "platform": platform,
            "inputs": described[0],
            "outputs": described[1],
        }

    def sample(self) -> Sample:
        if self.queue is not None:
            waiting, running = self.queue.waiting, self.queue.running
        else:
            waiting = self.loaded.waiting if isinstance(self.loaded, TextModel) else 0
            running = self.active - waiting
        worker = self.worker
        pss = None if worker is None else worker.pss
        held = 0 if self.loaded is None else max(held_bytes(self.loaded), self.file_bytes) if pss is None else pss
        restarts = getattr(self.queue or self.loaded, "restarts", 0)
        ready = self.state == READY
        spent = 0.0 if worker is None else worker.cpu_seconds
        counts = (waiting, running, held, ready, pss, restarts, spent)
        return Sample(self.name, self.version, self.stats, self.language, *counts)


def _describe(port: Port) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else -1 for size in port.shape.sizes]
    kind = datatype(port.shape.dtype, bool(port.labels))
    return {"name": port.name, "datatype": kind or str(port.shape.dtype), "shape": sizes}


class Catalogue:
    """Every model that was named, by name and version. All methods run on the event loop; loading in threads."""

    def __init__(self, models: Iterable[ModelConfig], memory_budget: int | None = None) -> None:
        self._sources = list(models)
        self.unloaded: set[str] = set()  # names of models that an administrator unloaded
        self.draining = False  # the server stops: it answers, but wants no more
        self.names_models = True  # in errors; not where keys open some models only
        self._models: dict[str, dict[str, Version]] = {}
        self._busy: dict[str, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._zygote = Zygote()
        self._budget, self._room = Budget(memory_budget), asyncio.Lock()
        self._fetching: dict[Version, asyncio.Task[object]] = {}
        for version in self._scan():
            versions = self._models.setdefault(version.name, {})
            if version.version in versions:
                raise FileError(
                    f"two models are called {version.name!r}",
                    got=f"{versions[version.version].path} and {version.path}",
                    remedy="give one of them another name: NAME=PATH",
                )
            versions[version.version] = version
        if not self._models:
            raise FileError(
                "there is nothing to serve",
                expected="model files, folders of language models, repositories",
                remedy="smelt serve MODEL.onnx",
            )

    def _scan(self) -> list[Version]:
        return [version for config in self._sources for version in find(config)]

    # ---- looking up ----

    def every(self) -> list[Version]:
        return [version for versions in self._models.values() for version in versions.values()]

    def pick(self, name: str, version: str = "") -> Version:
        """A version of a model; without a number the latest that can be called."""
        versions = self._models.get(name)
        if versions is None or (version and version not in versions):
            label = f"{name} version {version}" if version else name
            raise NotFoundError(f"no model {label!r}", expected=self._names())
        if version:
            return versions[version]
        if len(versions) == 1:
            return next(iter(versions.values()))
        return max([each for each in versions.values() if each.callable] or versions.values(), key=_order)

    def find_ready(self, name: str, version: str = "") -> Version | None:
        """A model with a queue of its own that can be called now."""
        versions = self._models.get(name)
        if versions is None or (version and version not in versions):
            return None
        found = self.pick(name, version)
        is_direct = found.state == READY and isinstance(found.queue, ModelQueue) and found.sequences is None
        return found if is_direct else None

    def get(self, name: str, version: str = "") -> Version:
        """A model that can be called now. One that was unloaded to save memory is loaded in the meantime."""
        found = self.pick(name, version)
        found.used = time.monotonic()
        if found.state != READY:
            if found.on_demand:
                self._fetch(found)
            retry = 1.0 if found.on_demand or found.state == LOADING else None
            raise UnavailableError(f"{name} is not ready: {found.reason or found.state.lower()}", retry_after=retry)
        return found

    async def demand(self, name: str, version: str = "") -> Version:
        """The same, but wait for a model that was unloaded to save memory."""
        found = self.pick(name, version)
        if found.state == READY:
            found.used = time.monotonic()
            return found
        if found.on_demand:
            await asyncio.shield(self._fetch(found))  # others may wait for it, too
        return self.get(name, version)

    def _fetch(self, version: Version) -> asyncio.Task[object]:
        """Load a model on demand, once for all waiting requests."""
        task = self._fetching.get(version)
        if task is None:
            task = asyncio.get_running_loop().create_task(self.load(version.name, version.version))
            task.add_done_callback(lambda done: self._log_failure(version, done))
            self._fetching[version] = task
        return task

    def _log_failure(self, version: Version, done: asyncio.Task[object]) -> None:
        del self._fetching[version]
        if not done.cancelled() and done.exception() is not None:
            log.error("%s: %s", version.name, done.exception())

    def _names(self) -> str | None:
        return ", ".join(sorted(self._models)) if self.names_models else None

    def find_versions(self, name: str) -> dict[str, Version]:
        if name not in self._models:
            raise NotFoundError(f"no model {name!r}", expected=self._names())
        return self._models[name]

    def versions(self, name: str) -> list[str]:
        return sorted(version for version, each in self._models[name].items() if each.callable)

    @property
    def ready(self) -> bool:
        """Whether every model that should be there can be called in some version: one that was unloaded should not."""
        wanted = (versions for name, versions in self._models.items() if name not in self.unloaded)
        return not self.draining and all(any(each.callable for each in versions.values()) for versions in wanted)

    # ---- loading and unloading ----

    async def load_all(self) -> None:
        """Load the latest version of every model, one at a time: compiling uses all cores. Models beyond the memory
        budget are loaded on demand."""
        for name in sorted(self._models, key=lambda name: self._is_pipeline(name)):  # after the models that they call
            latest = max(self._models[name].values(), key=_order)
            if name in self.unloaded:
                latest.reason = "unloaded"
                continue
            if self._excess(latest.estimate()) > 0 and any(each.state == READY for each in self.every()):
                latest.on_demand, latest.reason = True, ON_DEMAND
                continue
            try:
                await self.load(name)
            except SmeltError as error:
                log.error("%s: %s", name, error)

    async def load(self, name: str, version: str = "") -> Version:
        """Load the latest version, or a given one; calls go on to the old one until the new one is ready."""
        self._rescan(name)
        self.unloaded.discard(name)
        lock = self._busy.setdefault(name, asyncio.Lock())
        async with lock:
            versions = self.find_versions(name)
            if version and version not in versions:
                raise NotFoundError(f"{name} has no version {version}", expected=", ".join(versions))
            wanted = versions[version] if version else max(versions.values(), key=_order)
            old = [each for each in versions.values() if each.state == READY and each is not wanted]
            if wanted.state == READY:
                fresh = Version(name, wanted.version, wanted.path, wanted.config, wanted.language, stats=wanted.stats)
                old.append(wanted)
            else:
                fresh = wanted
            fresh.sequences = next((v.sequences for v in old if v.config.state == fresh.config.state), None)
            try:
                await self._make_room(fresh)
            except SmeltError as error:
                if not fresh.on_demand:
                    fresh.reason = str(error)
                raise
            fresh.state, fresh.reason = LOADING, "loading"
            started = time.perf_counter()
            try:
                if is_pipeline(fresh.config, fresh.path):
                    await _open_pipeline(fresh, self.demand)
                else:
                    await asyncio.to_thread(_open, fresh, self._zygote)
            except SmeltError as error:
                fresh.state, fresh.reason, fresh.on_demand, fresh.bytes = UNAVAILABLE, str(error), False, 0
                raise
            except Exception as error:  # a bug of ours must not end the server
                log.exception("%s could not be loaded", name)
                fresh.state, fresh.reason = UNAVAILABLE, f"{type(error).__name__}: {error}"
                fresh.on_demand, fresh.bytes = False, 0
                raise UnavailableError(f"{name} could not be loaded: {fresh.reason}") from error
            for each in (fresh.queue, fresh.loaded):
                if isinstance(each, RemoteQueue | RemoteTexts):
                    each.attach()
            if fresh.config.state and fresh.sequences is None:
                fresh.sequences = Sequences(name, fresh.config.state, fresh.config.max_sequences)
            fresh.seconds = time.perf_counter() - started
            fresh.state, fresh.reason, fresh.on_demand, fresh.used = READY, "", False, time.monotonic()
            versions[fresh.version] = fresh
            for each in old:
                self._retire(each)
            await self._measure([fresh])
            return fresh

    def _is_pipeline(self, name: str) -> bool:
        return any(is_pipeline(each.config, each.path) for each in self._models[name].values())

    # ---- the memory budget ----

    def _excess(self, needed: int) -> int:
        return self._budget.excess((each.bytes for each in self.every()), needed)

    async def _measure(self, versions: Iterable[Version]) -> None:
        if self._budget.limit is not None:
            for each in versions:
                if each.state == READY:
                    each.bytes = await asyncio.to_thread(measure, each.worker, each.loaded, each.estimate())

    async def _make_room(self, wanted: Version) -> None:
        """Unload what was not used for longest until a model fits; what runs a request stays."""
        if self._budget.limit is None:
            return
        needed = max(wanted.bytes, await asyncio.to_thread(wanted.estimate))
        self._budget.check_alone(wanted.name, needed)
        async with self._room:
            await self._measure(self.every())
            while self._excess(needed) > 0:
                idle = [v for v in self.every() if v.state == READY and v.idle and v.name != wanted.name]
                if not idle:
                    raise UnavailableError(
                        f"there is no memory for {wanted.name} now: all others are in use", retry_after=1
                    )
                victim = min(idle, key=lambda each: each.used)
                log.info("%s makes room for %s", victim.name, wanted.name)
                await asyncio.wait((self._retire(victim),))
                victim.on_demand, victim.reason = True, ON_DEMAND
            wanted.bytes = needed

    def keep_alive(self, name: str, seconds: float | None) -> None:
        """Unload a model when it was not used for some seconds; the next request loads it. None: keep it."""
        for version in self.find_versions(name).values():
            if version.state == READY:
                version.set_keep_alive(seconds)
                if seconds is not None:
                    self._expire(version, seconds)

    def _expire(self, version: Version, seconds: float) -> None:
        """Unload what was not used, or look again. The last wish holds."""
        left = seconds if version.active else version.used + seconds - time.monotonic()
        if not version.idle or left > 0:
            loop = asyncio.get_running_loop()
            version.expiry = loop.call_later(max(left, 0.1), self._expire, version, seconds)
            return
        log.info("%s was not used for %g s and is unloaded", version.name, seconds)
        self._retire(version)
        version.on_demand, version.reason = True, ON_DEMAND

    def _rescan(self, name: str) -> None:
        """Versions that came into the repository, or left it, since the last look."""
        known = self._models.get(name, {})
        for version in self._scan():
            if version.name == name and version.version not in known:
                known[version.version] = version
        if known:
            self._models[name] = known

    async def unload(self, name: str) -> None:
        """Take no more requests for a model, after a load that runs has ended."""
        self.find_versions(name)
        self.unloaded.add(name)
        async with self._busy.setdefault(name, asyncio.Lock()):
            for version in self.find_versions(name).values():
                version.on_demand = False
                if version.state == READY:
                    self._retire(version)

    def _retire(self, version: Version) -> asyncio.Task[None]:
        """Close what a version holds once its requests have ended. The version itself may be loaded again at once."""
        task = asyncio.get_running_loop().create_task(_close(version.queue, version.loaded))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        version.queue = version.loaded = None
        version.set_keep_alive(None)
        version.fitting.clear()
        version.state, version.reason, version.bytes = UNAVAILABLE, "unloaded", 0
        return task

    async def close(self, seconds: float) -> None:
        """Drain every queue."""
        self.draining = True
        for version in self.every():
            if version.state == READY:
                self._retire(version)
        if self._closing:
            await asyncio.wait(self._closing, timeout=seconds)
        await asyncio.to_thread(self._zygote.close)


async def _close(queue: ModelQueue | PipelineQueue | None, loaded: Any) -> None:
    if queue is not None:
        queue.close()
        await queue.drain(60.0)
    elif isinstance(loaded, TextModel):
        await loaded.drain(60.0)
    if isinstance(queue, ModelQueue) and isinstance(queue.call, SampledModel):
        queue.call.close()
    await asyncio.to_thread(loaded.close)


def _order(version: Version) -> tuple[int, int, str]:
    text = version.version
    return (1, int(text), "") if text.isdecimal() else (0, 0, text)


# ---- paths → versions ----


def find(config: ModelConfig) -> list[Version]:
    """A model file, a language model, or a repository `name/version/model.*`."""
    path = resolve(config.path)
    if config.steps:
        return [_version(config, config.name, "1", path)]
    if not path.exists():
        raise FileError("no such file or folder", got=path, remedy="check the path")
    if _is_model(path):
        return [_version(config, config.name or _name_of(path), "1", path)]
    if path.is_dir():
        found = [each for folder in sorted(path.iterdir()) if folder.is_dir() for each in _in_folder(config, folder)]
        if found:
            return found
    raise UnsupportedError(
        f"{path} cannot be served",
        expected=f"a file {', '.join(FILES)}, .gguf, a folder with config.json, or a repository NAME/VERSION/model.*",
        remedy="check the path; smelt inspect says what a file is",
    )


def _in_folder(config: ModelConfig, folder: Path) -> list[Version]:
    """The versions of one model in a repository. `config.toml` beside them overrides what the command line says."""
    own = folder / "config.toml"
    if own.exists():
        config = read_model_config(own)
        if config.steps:
            return [_version(config, config.name or folder.name, "1", folder)]
    name = config.name or folder.name
    if _is_model(folder):
        return [_version(config, name, "1", folder)]
    found = []
    for place in sorted(folder.iterdir()):
        if place.is_dir() and place.name.isdecimal():
            models = [place] if _is_model(place) else [each for each in sorted(place.iterdir()) if _is_model(each)]
            if len(models) > 1:
                raise FileError(
                    f"{place} has several models",
                    expected="one",
                    got=", ".join(m.name for m in models),
                    remedy="leave one of them in the folder",
                )
            found += [_version(config, name, place.name, each) for each in models]
    return found


def _version(config: ModelConfig, name: str, version: str, path: Path) -> Version:
    if not NAME.fullmatch(name):
        raise FileError(
            f"{path}: {name!r} is no name for a model",
            expected="letters, digits, '.', '_' and '-', at most 128",
            remedy="NAME=PATH",
        )
    language = (path.is_dir() and not config.steps) or path.suffix.lower() == ".gguf"
    return Version(name, version, path, config, language)


def _is_model(path: Path) -> bool:
    if path.is_dir():
        return (path / "config.json").is_file()
    return path.suffix.lower() in (*FILES, ".gguf", PYTHON)


def _name_of(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


# ---- loading, in a thread ----


async def _open_pipeline(version: Version, demand: Callable[[str], Awaitable[Version]]) -> None:
    is_named = Path(version.config.path) == version.path  # by the user, and not found in a repository
    if version.path.suffix == PYTHON and not (is_named or version.config.trusted):
        raise UnsupportedError(
            f"{version.path} would run inside the server", remedy="trusted = true in the model's configuration"
        )
    steps = await asyncio.to_thread(read_steps, version.config, version.path)
    models = {each.name: await demand(each.name) for each, _ in steps if isinstance(each, ModelStep)}
    made = Pipeline(version.name, version.config, steps, models, demand)
    version.loaded, version.batching = made, "a pipeline's models have queues of their own"
    version.queue = PipelineQueue(made, version.config.max_queue, version.stats.call)


def _open(version: Version, zygote: Zygote) -> None:
    version.file_bytes = version.estimate()
    _open_model(version, zygote)
    version.about = version.loaded.about if isinstance(version.loaded, TextModel) else None
    try:
        if version.config.state and version.language:
            raise UnsupportedError(f"{version.name} is a language model, which has no `state`", remedy="leave it out")
        if version.config.state:
            ports = version.loaded.signature
            check_state(version.name, version.config.state, ports.inputs, ports.outputs)
    except SmeltError:
        if version.queue is not None:
            version.queue.close()
        loaded, version.loaded, version.queue = version.loaded, None, None
        loaded.close()
        raise


def _open_model(version: Version, zygote: Zygote) -> None:
    config = version.config
    if version.isolated:
        if config.engine == "pjrt" or config.device not in ("auto", "cpu"):
            raise UnsupportedError(
                f"{version.name}: a sandboxed worker has no accelerator and starts no process",
                expected='device "cpu", engine "native" or "reference"',
                got=f"device {config.device!r}, engine {config.engine!r}",
                remedy="trusted = true for this model, or --trusted",
            )
        if config.kernel_spans:
            raise UnsupportedError(
                f"{version.name}: kernels are traced inside the server only",
                remedy="trusted = true for this model, or no kernel_spans",
            )
        _open_remote(version, zygote)
        return
    with count_compiles() as made:
        _open_here(version)
    version.stats.compiles += made.count


def _open_here(version: Version) -> None:
    """Inside the server."""
    config = version.config
    version.language = is_language(version.path)
    if version.language:
        version.loaded = open_texts(version.name, version.path, config)
        return
    model = version.loaded = open_model(version.path, config)
    version.batching = why_not_batched(model.provenance, config)

    def call(inputs: Mapping[str, Array], timeout: float | None, cancel: Cancel | None) -> dict[str, Array]:
        if not config.compile_on_request:
            return model.run(inputs, timeout=timeout, cancel=cancel)
        with count_compiles() as made:
            outputs = model.run(inputs, timeout=timeout, cancel=cancel)
        version.stats.compiles += made.count
        return outputs

    if config.kernel_spans:
        sampled = SampledModel(version.name, version.path, config, model)
        version.queue = ModelQueue(version.name, sampled, _limits(version), version.stats.call, sampled.take_kernels)
    else:
        version.queue = ModelQueue(version.name, call, _limits(version), version.stats.call)
    if config.warm_up:
        inputs, times = warm_up(version.name, version.path, config, model)
        for spent in times:
            version.queue.measure(inputs, spent)
    stop_compiling(config, model)


def _open_remote(version: Version, zygote: Zygote) -> None:
    model = RemoteModel(zygote, version.name, version.path, version.config)
    version.stats.compiles += model.loaded.compiles
    version.language = model.loaded.about is not None
    if version.language:
        version.loaded = RemoteTexts(model)
        return
    version.loaded = model
    version.batching = why_not_batched(model.provenance, version.config)
    version.queue = RemoteQueue(version.name, model, _limits(version), version.stats.call)


def _limits(version: Version) -> Limits:
    config = version.config
    rows = 1 if version.batching else config.max_batch
    may_inline = not config.compile_on_request  # compiling would stop the event loop
    return Limits(config.instances, rows, config.max_delay_ms / 1000, config.max_queue, may_inline)


def check_inputs(version: Version, given: Mapping[str, Array]) -> None:
    """Refuse inputs with wrong names, types or ranks before they wait for anything."""
    described = tuple([(name, array.dtype, array.shape) for name, array in given.items()])
    if described in version.fitting:
        return
    ports = {port.name: port.shape for port in version.inputs}
    if given.keys() != ports.keys():
        ports |= {port.name: port.shape for port in version.loaded.optional if port.name in given}
        if given.keys() != ports.keys():
            raise _wrong_names(version, given, ports)
    for name, array in given.items():
        shape = ports[name]
        if (array.dtype != shape.dtype.numpy and array.dtype.kind not in "OUS") or not _fits(array.shape, shape.sizes):
            raise RequestError(
                f"{version.name}: the input {name!r} does not fit",
                expected=shape,
                got=type_text(array),
                remedy=f"GET /v2/models/{version.name} describes its inputs",
            )
    if len(version.fitting) < MOST_FITTING:
        version.fitting.add(described)


def _fits(real: Sequence[int], sizes: Sequence[Size]) -> bool:
    return len(real) == len(sizes) and all(
        size == here for size, here in zip(sizes, real, strict=True) if isinstance(size, int)
    )


def _wrong_names(version: Version, given: Mapping[str, Array], ports: Mapping[str, Shape]) -> RequestError:
    missing = [name for name in ports if name not in given]
    unknown = [name for name in given if name not in ports]
    return RequestError(
        f"{version.name}: the inputs do not fit",
        expected=", ".join(f"{name}: {shape}" for name, shape in ports.items()),
        got=", ".join([*(f"no {name}" for name in missing), *(f"unknown {name}" for name in unknown)]),
    )
