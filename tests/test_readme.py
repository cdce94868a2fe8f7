"""What the README promises is true: its example, its links, its commands and its map."""

import doctest
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
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    example = doctest.DocTestParser().get_doctest(block, {}, "README.md", "README.md", 0)
    assert len(example.examples) == 10
    reports: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=reports.append)
    assert result.attempted == 10
    assert result.failed == 0, "".join(reports)


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


def test_the_map_lists_the_chapters_of_the_claims_in_their_order():
    rows = dict(re.findall(r"^\| \[?`(\w+)`.*\| ([a-z ]+) \|$", README, flags=re.MULTILINE))
    claims = tomllib.loads((ROOT / "book" / "claims.toml").read_text(encoding="utf-8"))
    names = [chapter["name"] for chapter in claims["chapter"]]
    assert [name for name in rows if name in names] == names
    assert set(rows.values()) <= {"ready", "coming"}
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    for name, state in rows.items():
        assert (f"book/{name}" in contents) == (state == "ready"), name


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (cited,) = re.findall(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    assert cited == attnbook.__version__ == PYPROJECT["project"]["version"]
    assert f"Version {cited}." in README
