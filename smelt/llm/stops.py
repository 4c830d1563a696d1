"""Stop strings in a stream: text is held back while it may be the beginning of one."""

from __future__ import annotations


class Stops:
    """Text is released as soon as no stop string can begin in it."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """The text that is out now, and whether a stop string ends it there."""
        if not self._stops:
            return text, False
        self._held += text
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            out, self._held = self._held[: min(found)], ""
            return out, True
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out, False

    def finish(self) -> str:
        """What was held back."""
        out, self._held = self._held, ""
        return out

    def _overlap(self, stop: str) -> int:
        """How much of the end may be the beginning of a stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
