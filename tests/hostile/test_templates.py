"""Chat templates, good and hostile. transformers' environment is the same class of Jinja's; here it has limits."""

from __future__ import annotations

import pytest

from smelt.errors import SmeltError
from smelt.llm import chat
from smelt.llm.chat import render

pytest.importorskip("jinja2")
HELLO = [{"role": "user", "content": "hello"}]


def test_messages_become_a_prompt() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m['content'] | trim }}]"
        "{% elif loop.last %}{% continue %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert render(template, HELLO, bos_token="<s>") == "<s>[hello]>"
    assert render("{{ messages | tojson }}", HELLO) == '[{"role": "user", "content": "hello"}]'
    assert render("{{ tools | length if tools else 'none' }}", HELLO) == "none"


GROW = "{% set ns = namespace(t='xy' * 1000) %}{% for i in range(60) %}"
HOSTILE = {
    "the chat template refuses these messages": [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ''.format.__globals__ }}{{ '{0.__class__}'.format(1).x.y }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ lipsum(n=100000) }}",
        "{{ messages | map('nonsense') | list }}",
        "{{ range(10 ** 9) | list }}",
    ],
    "the chat template does not end": [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in 'x' * 99999 %}{% set c = a %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ [1] * 10 ** 12 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 'x'.center(10 ** 12) }}",
        "{{ 'x' | center(10 ** 12) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ 'x'.ljust(10 ** 12) }}{{ 'x' | indent(10 ** 12) }}",
        GROW + "{% set ns.t = ns.t + ns.t %}{% endfor %}",
        GROW + "{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
        GROW + "{% set ns.t = ns.t.replace('x', ns.t) %}{% endfor %}",
        GROW + "{% set ns.t = ns.t | replace('x', ns.t) %}{% endfor %}",
        GROW + "{% set ns.t = [ns.t, ns.t] | join %}{% endfor %}",
        GROW + "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t }}",
        GROW + "{% set ns.t = [ns.t, ns.t] | string %}{% endfor %}",
        GROW + "{% set ns.t = '%s%s' % (ns.t, ns.t) %}{% endfor %}",
        GROW + "{% set ns.t = '{0}{0}'.format(ns.t) %}{% endfor %}",
        GROW + "{% set t %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = t %}{% endfor %}",
        GROW + "{% set ns.t = 'x'.join([ns.t, ns.t]) %}{% endfor %}",
        GROW + "{% set ns.t = (ns.t ~ ns.t) | tojson %}{% endfor %}",
    ],
    "the chat template cannot be read": [
        "{% for %}",
        "{{ " * 50,
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
    ],
}


@pytest.mark.parametrize(("message", "template"), [(says, each) for says in HOSTILE for each in HOSTILE[says]])
def test_hostile_templates_end_in_an_error(message: str, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_STEPS", 200_000)
    with pytest.raises(SmeltError, match=message):
        render(template, HELLO)


def test_marks_for_training_are_rendered_as_they_are() -> None:
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}a{{ messages[0].content }}{% endgeneration %}{{ x }}"
    assert render(template, [{"role": "user", "content": "b"}]) == "ab1"


def test_messages_without_a_role_are_refused() -> None:
    for wrong in (["hello"], [{"content": "x"}], [{"role": 1}]):
        with pytest.raises(SmeltError, match="role"):
            render("x", wrong)


def test_a_template_keeps_nothing_between_its_uses() -> None:
    template = (
        "{% set seen = namespace(texts=[]) %}{% macro note(text, before=[]) %}{{ before }}{{ text }}{% endmacro %}"
        "{% for m in messages %}{% set seen.texts = seen.texts + [m.content] %}{{ note(m.content) }}{% endfor %}"
        "{{ seen.texts }}{{ secret is defined }}"
    )
    first = render(template, [{"role": "user", "content": "a"}], secret=1)
    assert first == "[]a['a']True"
    assert render(template, [{"role": "user", "content": "b"}]) == "[]b['b']False"
