"""Chat templates as fixed texts between messages: Jinja is the oracle; what has no such form is refused."""

from __future__ import annotations

import pytest

from smelt.errors import UnsupportedError
from smelt.llm.chat import render
from smelt.llm.chat_form import reduce_template

pytest.importorskip("jinja2")
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<s>system\nBe kind.<e>\n{% endif %}"
    "<s>{{ m.role }}\n{{ m.content }}<e>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<h>{{ m.role }}</h>\n\n{{ m.content | trim }}<e>{% endfor %}"
    "{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}"
)
INST = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ bos_token }}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
SPECIALS = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.mark.parametrize(("template", "trims", "has_system"), [(CHATML, 0, 1), (LLAMA3, 1, 1), (INST, 0, 0)])
def test_the_form_renders_as_the_template_does(template: str, trims: int, has_system: int) -> None:
    form = reduce_template(template, SPECIALS)
    assert (form.is_trimmed, form.open_system is not None) == (bool(trims), bool(has_system))
    messages = [{"role": role, "content": f" {role}: 1\n"} for role in ("user", "assistant", "user")]
    given = [messages, *([[{"role": "system", "content": "x "}, *messages]] if has_system else [])]
    for conversation in given:
        assert form.render(conversation) == render(template, conversation, bos_token="<bos>", eos_token="<eos>")


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ loop.index }}: {{ m.content }}\n{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}",
        "{% for m in messages %}{{ m.role }} {{ m.content | length }} {{ m.content }}\n{% endfor %}",
        "{{ messages[-1].content }}",
    ],
)
def test_templates_without_such_a_form_are_refused(template: str) -> None:
    with pytest.raises(UnsupportedError):
        reduce_template(template, SPECIALS)
