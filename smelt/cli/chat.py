"""`smelt chat`: a conversation with a language model on the terminal, with streamed answers.

Ctrl-C stops an answer, not the program; the partial answer stays in the conversation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from smelt.cli.generate import speed
from smelt.errors import FileError, SmeltError
from smelt.llm import LanguageModel, load

HELP = """/system TEXT  set the system prompt, and start again
/save FILE    write the conversation as JSON
/clear        start again
/exit         end, as Ctrl-D does"""


class Conversation:
    """The messages so far and the model that answers them."""

    def __init__(self, model: LanguageModel, system: str, options: Mapping[str, Any], console: Console) -> None:
        self.model, self.options, self.console = model, options, console
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.begin()

    def begin(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def command(self, line: str) -> bool:
        """Execute a slash command; False ends the chat."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/exit" | "/quit":
                return False
            case "/clear":
                self.begin()
            case "/system":
                self.system = rest
                self.begin()
            case "/save" if rest:
                self.save(Path(rest))
            case _:
                self.console.print(HELP, markup=False)
        return True

    def save(self, path: Path) -> None:
        try:
            path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise FileError(f"cannot write {path}", got=error, remedy="/save with a file in another folder") from error
        self.console.print(f"{len(self.messages)} messages in {path}", style="dim", markup=False)

    def say(self, text: str) -> None:
        """Answer a message, streaming the text."""
        self.messages.append({"role": "user", "content": text})
        run = self.model.stream(self.model.prompt(self.messages), **self.options)
        said: list[str] = []
        count = 0
        try:
            for piece in run:
                said.append(piece.text)
                count += 1
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            run.close()
            said.append("")
        except SmeltError:
            self.messages.pop()
            raise
        sys.stdout.write("\n")
        sys.stdout.flush()
        self.messages.append({"role": "assistant", "content": "".join(said)})
        self.console.print(speed(run.timings, count), style="dim")


def chat(path: Path, system: str, options: Mapping[str, Any], loading: Mapping[str, Any]) -> None:
    console = Console(stderr=True, highlight=False)
    with load(path, **loading) as model:
        talk = Conversation(model, system, options, console)
        model.prompt([{"role": "user", "content": "hello"}])  # a model without a template is refused here
        console.print(f"{model!r}; /help, Ctrl-D ends", style="dim", markup=False)
        while (line := _line()) is not None:
            try:
                if not line.strip():
                    continue
                if line.startswith("/"):
                    if not talk.command(line.strip()):
                        return
                    continue
                talk.say(line)
            except SmeltError as error:
                console.print(f"error {error}", style="red", markup=False)


def _line() -> str | None:
    """The next line of input; None at its end."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:  # at the prompt it clears the line
            print()
