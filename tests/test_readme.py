"""What the README promises is true: its example, its links, its commands and its map."""

import contextlib
import io
import re
import tomllib
from pathlib import Path

import pytest

import attnbook

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINKS = sorted(set(re.findall(r"\]\(([^)]+)\)", README)))
PAGES = ("README.md", "CONTRIBUTING.md")


def test_the_example_prints_what_it_says():
    code, output = re.search(
        r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.DOTALL
    ).groups()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})  # the lines as a reader pastes them
    assert printed.getvalue() == output


@pytest.mark.parametrize("link", LINKS)
def test_each_link_leads_to_a_file(link):
    assert (ROOT / link).is_file()


def test_each_picture_has_alternative_text():
    pictures = re.findall(r"!\[([^]]*)\]", README)
    assert pictures
    assert all(len(text) > 20 for text in pictures)


@pytest.mark.parametrize("page", PAGES)
def test_each_make_target_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^    )make ([a-z]+)", text, flags=re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    assert named
    assert named <= targets, f"not in the Makefile: {named - targets}"


def test_each_extra_exists():
    named = set(re.findall(r"'\.\[([a-z0-9-]+)\]'", README))
    assert named
    assert named <= set(PYPROJECT["project"]["optional-dependencies"])


def test_the_map_lists_the_chapters_in_their_order():
    rows = re.findall(r"^\| \[`(\w+)`\]\(book/(\w+)\.md\) \|", README, flags=re.MULTILINE)
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8").partition("Look it up")[0]
    chapters = re.findall(r"file: book/(\w+)\.ipynb", contents)
    assert chapters
    assert rows == [(name, name) for name in chapters]


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (cited,) = re.findall(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    assert cited == attnbook.__version__ == PYPROJECT["project"]["version"]
    assert f"Version {cited}." in README
