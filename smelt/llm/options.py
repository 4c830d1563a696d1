"""Options of a request: `Options.of` splits keywords into these and `Sampling`, and refuses unknown ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from smelt.errors import RunError
from smelt.llm.grammar import KINDS
from smelt.llm.sample import Sampling

MAX_ALTERNATIVES = 256


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a request besides `Sampling`."""

    max_tokens: int = 128
    stop: str | Sequence[str] = ()
    ignore_end: bool = False
    n: int = 1
    timeout: float | None = None
    client: str = ""
    sampling: Sampling | None = None
    schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 0:
            raise RunError(
                "max_tokens is a whole number", expected="0 or more", got=self.max_tokens, remedy="max_tokens=128"
            )
        if type(self.n) is not int or not 1 <= self.n <= MAX_ALTERNATIVES:
            raise RunError("n is how many answers", expected=f"1 to {MAX_ALTERNATIVES}", got=self.n, remedy="n=1")
        client: Any = self.client
        if not isinstance(client, str):
            raise RunError("client is a name", got=client, remedy='client="name", or leave it out')
        stop: Any = self.stop
        if not isinstance(stop, Sequence | Set) or not all(isinstance(each, str) and each for each in self.stops):
            raise RunError(
                "stop strings are texts that are not empty", got=self.stop, remedy='leave stop out, or stop="text"'
            )
        timeout: Any = self.timeout
        if timeout is not None and not (type(timeout) in (int, float) and timeout >= 0):
            raise RunError(
                "timeout is a number of seconds", expected="0 or more", got=self.timeout, remedy="timeout=60"
            )

        if len(self.constraints) > 1:
            raise RunError(
                "an answer has one form",
                expected=" or ".join(KINDS),
                got=", ".join(self.constraints),
                remedy="give one of them",
            )

    @property
    def constraints(self) -> dict[str, Any]:
        return {kind: source for kind in KINDS if (source := getattr(self, kind)) is not None}

    @property
    def stops(self) -> tuple[Any, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @staticmethod
    def of(given: Mapping[str, Any]) -> tuple[Options, Sampling]:
        """Options and what is for sampling, from keywords."""
        ours, theirs = Options.__dataclass_fields__, Sampling.__dataclass_fields__
        if unknown := [name for name in given if name not in ours and name not in theirs]:
            raise RunError(
                "unknown options",
                expected=", ".join((*ours, *theirs)),
                got=", ".join(unknown),
                remedy="check the spelling",
            )
        options = Options(**{name: value for name, value in given.items() if name in ours})
        chosen = {name: value for name, value in given.items() if name in theirs}
        return options, replace(options.sampling or Sampling(), **chosen)
