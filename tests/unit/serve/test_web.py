"""The web page: what the server sends for it, and the page itself in headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

import pytest

from smelt.serve.config import KeyConfig
from smelt.serve.web import FILES
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_vocabulary
from tests.unit.serve.browser import CHROMIUM, Browser
from tests.unit.serve.client import DIGITS, Client, model, serving
from tests.unit.serve.test_server import Server

KEY = KeyConfig(name="team", sha256=sha256(b"secret").hexdigest())


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(model(DIGITS), keys=[KEY]) as made:
        yield made


def test_files_come_without_a_key_and_with_a_strict_policy(client: Client) -> None:
    assert {"/", "/page/app.js", "/page/style.css"} <= FILES.keys()
    for path in FILES:
        reply = client.get(path)
        assert reply.status == 200, path
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert client.get(path, if_none_match=reply.headers["etag"]).status == 304
    assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/page/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/page/../app.py").status == 404
    assert client.get("/api/v1/info").status == 401


def test_files_load_nothing_from_elsewhere_and_write_no_html() -> None:
    for path, (data, _, _) in FILES.items():
        text = data.decode().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"https?://|[\"'(]//", re.sub(r"^\s*//.*$", "", text, flags=re.M)), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
    page = FILES["/"][0].decode()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|\sstyle=", page)


def test_every_element_that_scripts_look_for_is_there() -> None:
    page = FILES["/"][0].decode()
    known = set(re.findall(r'\bid="([^"]+)"', page))
    asked = set(re.findall(r'byId\("([^"]+)"\)', FILES["/page/app.js"][0].decode()))
    assert len(asked) > 10
    assert asked <= known
    for label in re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', page):
        assert set(label.split()) <= known | {"tab-try"}
    imported = {
        name
        for data, _, _ in FILES.values()
        for name in re.findall(r'^import .* from "\./([\w.]+)";$', data.decode(), re.M)
    }
    assert {f"/page/{name}" for name in imported} <= FILES.keys()


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_enough_contrast() -> None:
    """WCAG AA: 4.5 for text, 3 for the edges of controls, light and dark."""
    style = FILES["/page/style.css"][0].decode()
    for block in re.findall(r":root \{(.*?)\}", style, re.S):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        pairs = [(text, ground, 4.5) for text in ("text", "soft", "accent", "good", "bad", "busy", "second")
                 for ground in ("card", "ground", "code")]  # fmt: skip
        for front, back, least in [*pairs, ("on-accent", "accent", 4.5), ("control", "card", 3)]:
            light, dark = sorted((_luminance(colours[front]), _luminance(colours[back])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= least, (front, back)


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("there is no chromium here")
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of tensors and a language model behind a key."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "tiny").mkdir()
    case = Case.load(FIXTURE)[0]
    write_checkpoint(folder / "tiny", case.config, case.shapes)
    write_vocabulary(folder / "tiny" / "tokenizer.json", ["<unk>", *(f"w{i}" for i in range(1, 96))])
    (folder / "tiny" / "chat_template.jinja").write_text("{% for m in messages %}w5 {{ m.content }} {% endfor %}w6")
    rows = [f'[[models]]\npath = "{path}"\nengine = "reference"' for path in (DIGITS, folder / "tiny")]
    key = f'[[keys]]\nname = "team"\nsha256 = "{KEY.sha256}"\nadmin = true'
    (folder / "server.toml").write_text("\n".join([*rows, key]))
    made = Server("--config", str(folder / "server.toml"))
    yield made
    made.close()


STATUS = "document.querySelector('#panel [role=status]')"


@pytest.mark.slow
def test_the_page_in_a_browser(server: Server, browser: Browser) -> None:
    browser.open(f"http://127.0.0.1:{server.http}/")
    # It asks for a key, refuses a wrong one, and takes the right one from the keyboard.
    browser.wait("document.getElementById('key-dialog').open && document.activeElement.id === 'key'")
    browser.type("wrong")
    browser.key("Enter")
    browser.wait("document.getElementById('key-wrong').textContent !== ''")
    browser.run("document.getElementById('key').select()")
    browser.type("secret")
    browser.key("Enter")
    browser.wait("document.querySelectorAll('#models tbody tr').length === 2")
    assert not browser.run("document.getElementById('key-dialog').open")
    # Tensors: random numbers, an answer that adds up to 1.
    browser.wait("document.querySelector('#panel fieldset')")
    browser.run("document.querySelectorAll('#panel fieldset button')[1].click()")
    browser.run("document.querySelector('#panel form').requestSubmit()")
    browser.wait("document.querySelector('.result h3')")
    assert browser.run("document.querySelector('.result h3').textContent") == "probabilities [1, 10]"
    total = browser.run(
        "JSON.parse(document.querySelector('.result pre').textContent)[0].reduce((a, b) => a + b)"
    )  # fmt: skip
    assert abs(total - 1) < 1e-4
    # A mistake of the user is said, not swallowed.
    browser.run("document.querySelector('#panel textarea').value = '[[1, 2]]'")
    browser.run("document.querySelector('#panel form').requestSubmit()")
    browser.wait("document.querySelector('.result .wrong')")
    # Tabs answer to the arrow keys; the code names the model.
    browser.run("document.getElementById('tab-try').focus()")
    browser.key("ArrowRight")
    browser.wait("document.activeElement.id === 'tab-snippets'")
    assert "/api/v1/models/digits/infer" in browser.run("document.querySelector('#panel pre').textContent")
    browser.key("ArrowLeft")
    # The chat streams an answer.
    browser.run("[...document.querySelectorAll('button.link')].find((each) => each.textContent === 'tiny').click()")
    browser.wait("document.querySelector('#panel .chat')")
    assert browser.run("document.activeElement.id") == "detail-title"
    browser.run("document.querySelector('#panel input[max=\"100000\"]').value = '8'")
    browser.run("document.querySelector('#panel textarea').focus()")
    browser.type("w7 w8 w9")
    browser.key("Enter")
    browser.wait(f"{STATUS}.textContent.includes('tokens in')")
    said = "[...document.querySelectorAll('.message p')].map((each) => each.textContent)"
    question, answer = browser.run(said)
    assert question == "w7 w8 w9"
    assert answer
    # Charts say their value in words, and nothing was refused by the policy.
    browser.wait("document.querySelector('.chart svg').getAttribute('aria-label')?.startsWith('Requests per second')")
    assert all("a status of 40" in problem for problem in browser.problems), browser.problems  # those asked for above


@pytest.mark.slow
def test_every_control_has_a_name_and_nothing_overflows(server: Server, browser: Browser) -> None:
    browser.open(f"http://127.0.0.1:{server.http}/#tiny%2F1")
    browser.wait("document.getElementById('key-dialog').open || document.querySelector('#panel form')")
    if browser.run("document.getElementById('key-dialog').open"):
        browser.type("secret")
        browser.key("Enter")
    browser.wait("document.querySelector('#panel form')")
    nameless = browser.run(
        "[...document.querySelectorAll('input, select, textarea, button')].filter((each) => "
        "!(each.labels?.length || each.getAttribute('aria-label') || each.textContent.trim())).map((e) => e.outerHTML)"
    )
    assert nameless == []
    for width in (1280, 390, 320):
        browser.size(width, 900)
        assert browser.run("document.documentElement.scrollWidth") <= width
