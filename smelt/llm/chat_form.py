"""A chat template → the fixed texts between messages, for programs without a template engine.

The texts are read from renderings of marked messages. They stand for the template only if they also give what it gives
for other conversations; else the template is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt.errors import RunError, UnsupportedError
from smelt.frozen import Frozen
from smelt.llm.chat import render

Message = Mapping[str, str]
_MARKS = ("⟦first⟧", "⟦second⟧", "⟦third⟧")
_SYSTEM = "⟦system⟧"
_CONTENTS = ("Hello.", " two words\n", "{{ x }} <b>\n\n- list", "ä", "What is 1 + 1?", "  ", "tab\t")


class ChatForm(Frozen):
    """A conversation is open, message, user_answer, answer, answer_user, message … user_ask. With a system message
    open_system, its text and system_user come in place of open. `is_trimmed`: without spaces around messages."""

    open: str
    user_answer: str
    user_ask: str
    answer_user: str
    open_system: str | None = None
    system_user: str | None = None
    is_trimmed: bool = False

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt of a conversation that begins with a system message or a user's, and ends with a user's."""
        contents = [each["content"].strip() if self.is_trimmed else each["content"] for each in messages]
        text = self.open
        if messages[0]["role"] == "system":
            text = f"{self.open_system}{contents.pop(0)}{self.system_user}"
        for i, content in enumerate(contents):
            is_last = i == len(contents) - 1
            text += content + (self.user_ask if is_last else self.answer_user if i % 2 else self.user_answer)
        return text


def reduce_template(template: str, specials: Mapping[str, str]) -> ChatForm:
    """The form of a template."""

    def apply(messages: Sequence[Message]) -> str:
        arguments: dict[str, Any] = dict(specials)
        return render(template, messages, **arguments)

    plain = _read(apply)
    for form in (plain, plain.replace(is_trimmed=True)):
        if all(_agrees(form, apply, conversation) for conversation in _conversations(form)):
            return form
    raise UnsupportedError(
        "the chat template has no fixed texts between messages",
        expected="a template that puts the same text before and after every message of a role",
        got=template[:200],
        remedy="smelt compile without --standalone: a bundle renders any template",
    )


def _roles(contents: Sequence[str], system: str | None = None) -> list[Message]:
    messages = [{"role": "assistant" if i % 2 else "user", "content": each} for i, each in enumerate(contents)]
    return [*([] if system is None else [{"role": "system", "content": system}]), *messages]


def _cut(text: str, marks: Sequence[str]) -> list[str]:
    """The texts around marks that come once each, in order."""
    found = []
    for mark in marks:
        if text.count(mark) != 1:
            raise UnsupportedError(
                "the chat template does not repeat a message once", expected=mark, got=f"{text.count(mark)} times"
            )
        before, _, text = text.partition(mark)
        found.append(before)
    return [*found, text]


def _read(apply: Callable[[Sequence[Message]], str]) -> ChatForm:
    opening, answer, again, ask = _cut(apply(_roles(_MARKS)), _MARKS)
    form = ChatForm(opening, answer, ask, again)
    try:
        before, between, *_ = _cut(apply(_roles(_MARKS, _SYSTEM)), (_SYSTEM, *_MARKS))
    except (RunError, UnsupportedError):
        return form  # it has no system messages
    return form.replace(open_system=before, system_user=between)


def _conversations(form: ChatForm) -> list[list[Message]]:
    """Others than those that the form was read from."""
    found = [_roles([*_CONTENTS[i:], *_CONTENTS[:i]][:count]) for i in range(len(_CONTENTS)) for count in (1, 3, 5)]
    if form.open_system is not None:
        found += [_roles(_CONTENTS[i : i + 3], _CONTENTS[-1 - i]) for i in range(3)]
        found += [_roles(_CONTENTS[:1], "Be brief.")]
    return found


def _agrees(form: ChatForm, apply: Callable[[Sequence[Message]], str], conversation: Sequence[Message]) -> bool:
    try:
        return apply(conversation) == form.render(conversation)
    except RunError:
        return False
