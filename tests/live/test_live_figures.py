"""Figures that run the page's Python, in Chromium: the reader's own function, and a training."""

import re

import pytest
from test_live_page import open_chapter, pyodide  # noqa: F401

pytestmark = [pytest.mark.site, pytest.mark.weekly]

NAIVE = """import numpy as np
def softmax(s):
    e = np.exp(s)
    return e / e.sum(axis=-1, keepdims=True)
def attention(Q, K, V):
    return softmax(Q @ np.matrix_transpose(K) / 192**0.5) @ V  # the root of another width"""


class Box:
    """A figure on the page of a reader."""

    def __init__(self, reader, name):
        self.reader, self.selector = reader, f"[data-lab={name}]"
        self.box = reader.tab.locator(self.selector)
        scroll = f"document.querySelector('{self.selector}').scrollIntoView()"
        assert reader.until(f"({scroll}, !!document.querySelector('{self.selector}.lab-open'))")

    def press(self, button, seconds):
        self.box.get_by_role("button", name=button).click()
        busy = f"document.querySelector('{self.selector}[aria-busy]')"
        assert self.reader.until(f"!{busy}", seconds)
        return self.box.locator(".lab-says").text_content()


def test_the_writer_writes_with_functions_of_the_reader(open_chapter):  # noqa: F811
    reader = open_chapter("single_head")
    box = Box(reader, "own_attention")
    assert reader.loaded == []
    assert "NameError: softmax is not defined yet" in box.press("Write with it", 600)
    cell = "answer-task-softmax"
    reader.write(cell, NAIVE)
    reader.run(cell)
    assert "the same text" in box.press("Write with it", 600)
    box.box.get_by_label("your attention").check(force=True)
    said = box.press("Write with it", 600)
    assert "writes another text" in said, said
    assert reader.problems == []


def test_two_models_are_trained_in_the_page(open_chapter):  # noqa: F811
    reader = open_chapter("masking")
    box = Box(reader, "cheating")
    assert reader.loaded == []
    said = box.press("Train both", 600)
    assert said.startswith("After 120 steps"), said
    masked, unmasked = (float(x) for x in re.findall(r"[03]\.\d\d", said)[:2])
    assert unmasked < 0.5 < masked
    reader.run("cell-1")  # the page goes on
    assert reader.problems == []
