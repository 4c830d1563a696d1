"""Items for one task of the event loop: `put` by callbacks, taken all at once by the task that waits for them."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    __slots__ = ("_items", "_waiting")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[T]:
        """All that is there, at least one."""
        while not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        found, self._items = self._items, []
        return found
