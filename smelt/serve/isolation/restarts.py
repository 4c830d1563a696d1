"""Restart workers that died: at once, and with exponential backoff after several failures in a row."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from smelt.errors import SmeltError
from smelt.serve.isolation.remote import RemoteModel

log = logging.getLogger("smelt.serve")
PATIENT = 3  # failures in a row after which requests no longer wait for the next worker
MOST_PAUSE = 30.0


class Restarts:
    """`attach` is called when the next worker is there, `refuse` with a reason when those who wait shall not wait.
    Nothing but `stop` ends the attempts."""

    def __init__(self, model: RemoteModel, attach: Callable[[], object], refuse: Callable[[str], object]) -> None:
        self.model, self._attach, self._refuse = model, attach, refuse
        self.count = 0
        self._failures = 0  # in a row
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # for those who wait

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def is_hopeless(self) -> bool:
        return self._task is not None and self._failures >= PATIENT

    def note_success(self) -> None:
        self._failures = 0

    def begin(self, loop: asyncio.AbstractEventLoop, wanted: bool) -> None:
        """The worker has ended. `wanted`: start another one."""
        self._news.clear()
        if wanted:
            self._task = loop.create_task(self._restart())
        self._note_failure("it keeps ending")

    def _note_failure(self, why: str) -> None:
        self._failures += 1
        if self._failures >= PATIENT:
            self._refuse(why)
            self._news.set()

    @property
    def _pause(self) -> float:
        return 0.0 if self._failures < PATIENT else min(MOST_PAUSE, 0.5 * 2.0 ** min(self._failures, 10))

    async def _restart(self) -> None:
        name = self.model.name
        how = await asyncio.to_thread(self.model.explain_end)
        log.error("%s: its worker process ended (%s) and is started again", name, how)
        while True:
            await asyncio.sleep(self._pause)
            try:
                await asyncio.to_thread(self.model.restart)
                break
            except (SmeltError, OSError) as error:  # e.g. a folder that is gone, or no descriptors left
                log.error("%s: its worker process did not start: %s", name, error)
                self._note_failure(str(error))
            except Exception as error:  # a bug of ours must not end the attempts
                log.exception("%s: its worker process did not start", name)
                self._note_failure(str(error))
        self._task = None
        self.count += 1
        self._attach()
        self._news.set()

    async def wait(self) -> None:
        """Until the next worker is there, or is not to be waited for."""
        if self._task is not None:
            await self._news.wait()

    async def stop(self) -> None:
        self._news.set()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
