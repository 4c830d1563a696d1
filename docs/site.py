"""`python docs/site.py OUT`: every page of docs/ and the API reference as a static site; `--tables` renews the tables.

Pages are Markdown, converted by markdown-it (it comes with rich). The API reference is made of the docstrings of the
names in `smelt.__all__`. Two pages are tables made from the code and kept in the repository, so that they can be read
there: onnx_operators.md and environment.md. Broken links end the build.
"""

from __future__ import annotations

import argparse
import html
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

import smelt
from smelt.read.onnx import model as _registers_operators  # noqa: F401
from smelt.read.onnx.registry import ROWS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md")

# The navigation: sections and their pages in reading order. Pages that no section names come last.
SECTIONS = {
    "Start": ("README", "docs/faq"),
    "Tutorials": tuple(f"docs/tutorials/{name}" for name in ("onnx", "own_model", "kv_cache", "deployment")),
    "Guides": tuple(f"docs/guides/{name}" for name in ("memory", "integration", "troubleshooting")),
    "Reference": tuple(
        f"docs/{name}"
        for name in (
            *("tensors", "models", "training", "llm", "engines", "gpu", "bundles", "edge", "serving"),
            *("threat-model", "limits", "precision", "tuning"),
            *("performance", "onnx_operators", "environment", "api"),
        )
    ),
    "Inside": tuple(f"docs/{name}" for name in ("architecture", "layout", "kernel", "backends", "glossary")),
    "Project": ("CONTRIBUTING", "SECURITY", "CHANGELOG", "examples/README"),
}

ENVIRONMENT = {
    "SMELT_TARGET": "Compile for another processor than this one: avx512, avx512vnni, avx512bf16, avx2, neon, plain.",
    "SMELT_THREADS": "Threads of the native engine. Default: one for each processor that the process may use.",
    "SMELT_CC": "The C compiler and its first arguments. Default: the ziglang package, else clang, gcc, cc.",
    "SMELT_CACHE_DIR": "Where compiled programs and tuning results are kept. Default: a folder of the user's cache. It "
    "must belong to the user (or root) and be writable by no other user; otherwise, and where it cannot be written, a "
    "private temporary folder serves until the process ends, with one warning.",
    "SMELT_CACHE_LIMIT": "The most that the cache may hold: 2GiB by default.",
    "SMELT_STORE": "Where `smelt pull` keeps models. Default: a folder of the user's data.",
    "SMELT_API_KEY": "The API key that commands with `--url` send to a server.",
    "SMELT_SERVE_": "In front of a setting of `smelt serve`: `SMELT_SERVE_PORT=9000`. `smelt serve --print-config` "
    "lists them.",
    "SMELT_TUNING": "The tuning database: a file, or `off`.",
    "SMELT_BUNDLE_KEYS": "Public keys, separated by commas: bundles that none of them signed are refused.",
    "SMELT_DEBUG": "`passes`: verify and print after every pass; `traceback`: tracebacks of user errors.",
}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav { border-bottom: 1px solid var(--line); padding-bottom: .5rem; margin-bottom: 1rem; }
nav a { margin-right: .8rem; white-space: nowrap; } nav b { display: inline-block; min-width: 6rem; }
img { max-width: 100%; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; } code { font-size: .92em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }
"""


def slug(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"`", "", title).lower()).strip().replace(" ", "-")


def to_html(text: str) -> str:
    """Markdown as HTML whose headings have anchors and whose links to pages end in .html."""
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(tokens[i + 1].content))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _page_link(str(child.attrGet("href"))))
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _page_link(target: str) -> str:
    return target if "://" in target else re.sub(r"\.md(?=#|$)", ".html", target)


def page(title: str, body: str, depth: int, sections: dict[str, list[str]]) -> str:
    links = "".join(
        f"<div><b>{section}</b> {''.join(_entry(name, depth) for name in names)}</div>"
        for section, names in sections.items()
    )
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>'
        f"<body><nav>{links}</nav><main>{body}</main></body></html>"
    )


def _entry(name: str, depth: int) -> str:
    shown = "examples" if name == "examples/README" else Path(name).name.replace("_", " ")
    return f'<a href="{"../" * depth}{name}.html">{shown}</a>'


def navigation(pages: dict[str, str]) -> dict[str, list[str]]:
    """The sections with the pages that there are; a page that no section names is in the last one."""
    known = {name for names in SECTIONS.values() for name in names}
    rest = sorted(pages.keys() - known)
    found = {section: [name for name in names if name in pages] for section, names in SECTIONS.items()}
    return found | ({"More": rest} if rest else {})


# ---- the API reference ----


def api() -> str:
    """Every public name with its signature and docstring, as Markdown."""
    lines = ["# API reference", "", "The public names of `smelt`, made from their docstrings.", ""]
    for name in sorted(smelt.__all__, key=str.lower):
        value = getattr(smelt, name)
        if name.startswith("__"):
            continue
        lines += [f"## smelt.{name}", ""]
        if inspect.isclass(value) or callable(value):
            lines += ["```python", f"{name}{_signature(value)}", "```", ""]
        lines += [_docstring(value), ""]
        if inspect.isclass(value):
            lines += _members(value)
    return "\n".join(lines)


def _members(owner: type) -> list[str]:
    """The public methods and properties that a class defines itself, with the first paragraph of their docstrings."""
    lines = []
    for name, member in vars(owner).items():
        target = getattr(member, "__func__", member)
        documented = inspect.getdoc(target.fget if isinstance(target, property) else target)
        if name.startswith("_") or not documented or not (isinstance(target, property) or callable(target)):
            continue
        shown = name if isinstance(target, property) else f"{name}{_signature(target)}"
        lines.append(f"- `{shown}`: {documented.partition(chr(10) * 2)[0].replace(chr(10), ' ')}")
    return [*lines, ""]


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(…)"


def _docstring(value: Any) -> str:
    """A docstring as Markdown: examples of the interpreter become blocks."""
    if getattr(value, "__module__", "") == "typing":
        return f"`typing.{value.__name__}`, with a shape as text: see [tensors](tensors.md)."
    text = inspect.getdoc(value) or ""
    return re.sub(r"((?:^>>> .*\n?(?:^(?!$).*\n?)*)+)", r"```python\n\1\n```\n", text, flags=re.M)


# ---- tables ----


def operators() -> str:
    """All ONNX operators that can be read, by domain, with the opset versions that have a reading of their own."""
    lines = [
        "# ONNX operators",
        "",
        "After reading this page you know which operators `smelt` imports. The table is made from the code by "
        "`python docs/site.py --tables`. `smelt inspect MODEL` lists everything in a file that is not supported, "
        "attributes and types included. Operators that the standard defines by a function need no row of their own.",
        "",
        "| domain | operator | since opset |",
        "|---|---|---|",
    ]
    for (domain, name), rows in sorted(ROWS.items()):
        versions = ", ".join(str(row.since) for row in sorted(rows, key=lambda row: row.since))
        lines.append(f"| {domain or 'ai.onnx'} | {name} | {versions} |")
    return "\n".join([*lines, ""])


def environment() -> str:
    lines = [
        "# Environment variables",
        "",
        "After reading this page you can change smelt's defaults for a process. Options in Python and on the command "
        "line take precedence.",
        "",
        "| variable | what it does |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in ENVIRONMENT.items()),
    ]
    return "\n".join([*lines, ""])


TABLES = {"onnx_operators.md": operators, "environment.md": environment}


# ---- the whole ----


def sources() -> dict[str, str]:
    """The site's pages as Markdown, by path without ending."""
    found = {name.removesuffix(".md"): (ROOT / name).read_text("utf-8") for name in TOP}
    found |= {f"docs/{path.relative_to(DOCS).with_suffix('')}": path.read_text("utf-8") for path in DOCS.rglob("*.md")}
    return {**found, "docs/api": api()}


def broken_links(pages: dict[str, str]) -> list[str]:
    """Links to pages, anchors or files of the repository that are not there."""
    wrong = []
    anchors = {name: {slug(title) for title in re.findall(r"^#+ (.*)$", text, re.M)} for name, text in pages.items()}
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            found = (Path(name).parent / path) if path else Path(name)
            shown = _normal(found).removesuffix(".md")
            if shown in pages:
                if anchor and anchor not in anchors[shown]:
                    wrong.append(f"{name}: {target} (no such heading)")
            elif not (ROOT / _normal(found)).exists():
                wrong.append(f"{name}: {target}")
    return wrong


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/".join(parts)


def build(out: Path) -> int:
    """Write the site; gives the number of pages."""
    pages = sources()
    wrong = broken_links(pages)
    if wrong:
        sys.exit("broken links:\n  " + "\n  ".join(wrong))
    sections = navigation(pages)
    for name, text in pages.items():
        path = out / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        title = next(iter(re.findall(r"^# (.*)$", text, re.M)), name)
        path.write_text(page(title, to_html(text), name.count("/"), sections), "utf-8")
    for picture in (DOCS / "pictures").iterdir():
        copied = out / "docs" / "pictures" / picture.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copied)
    (out / "index.html").write_text('<meta http-equiv="refresh" content="0; url=README.html">', "utf-8")
    return len(pages)


def main() -> None:
    options = argparse.ArgumentParser(prog="python docs/site.py", description=__doc__.partition("\n")[0])
    options.add_argument("out", type=Path, nargs="?", metavar="OUT", help="the folder to write the site to")
    options.add_argument("--tables", action="store_true", help="write the tables that are kept in docs/ anew")
    chosen = options.parse_args()
    if chosen.tables:
        for name, make in TABLES.items():
            (DOCS / name).write_text(make(), "utf-8")
    if chosen.out is not None:
        print(f"{build(chosen.out)} pages in {chosen.out}")


if __name__ == "__main__":
    main()
