"""Own attention: the writer with a function of the reader, and with each bug of the chapter."""

import json
import sys
import types

import numpy as np
import pytest
from figures import fits, lab_data, lab_named
from test_lab_cheating import waited

from attnbook import softmax
from attnbook.data import plays
from attnbook.models import writer


def naive(s):
    e = np.exp(s)
    return e / e.sum(axis=-1, keepdims=True)


def attention(Q, K, V):
    return softmax(Q @ np.matrix_transpose(K) / np.sqrt(Q.shape[-1], dtype=Q.dtype)) @ V


@pytest.fixture(scope="module")
def module():
    return lab_data.in_page("own_attention")


@pytest.fixture(scope="module")
def lab():
    return lab_named("own_attention")


@pytest.fixture
def answer(module, monkeypatch, capsys):
    """Return what the page hears when its reader has defined some names."""

    def answer(kind, **names):
        page = types.ModuleType("__main__")
        vars(page).update(names)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "__main__", page)
            module.answer(kind, 0)
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return answer


def test_right_is_the_writer_alone(module):
    found = module.judged("right", 0)
    assert found["text"] == writer().write("ROMEO:\n", 30, rng=0)
    bits = writer().bits_per_byte(plays().test[:500])
    assert found["bits"] == pytest.approx(bits, abs=1e-3)


@pytest.mark.parametrize("kind", ["softmax", "attention"])
def test_a_right_function_of_the_reader_writes_the_same(kind, answer):
    found = answer(kind, softmax=naive, attention=attention)
    assert found["found"]["text"] == found["right"]["text"]
    assert found["found"]["bits"] == pytest.approx(found["right"]["bits"], abs=1e-3)


WRONG = {
    "no scale": lambda Q, K, V: softmax(Q @ np.matrix_transpose(K)) @ V,
    "mean of the values": lambda Q, K, V: V.mean(axis=-2, keepdims=True) + 0 * Q,
    "no values": lambda Q, K, V: Q,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_of_the_reader_writes_otherwise(name, answer):
    found = answer("attention", attention=WRONG[name])
    assert found["found"]["text"] != found["right"]["text"]
    assert found["found"]["bits"] > found["right"]["bits"] + 0.02


@pytest.mark.parametrize(
    ("kind", "names", "words"),
    [
        ("softmax", {}, "NameError: softmax is not defined yet"),
        ("attention", {}, "NameError: attention is not defined yet"),
        ("softmax", {"softmax": lambda s: None}, "TypeError"),
        ("attention", {"attention": lambda Q, K, V: Q @ K.T @ V}, "ValueError"),
        ("softmax", {"softmax": lambda s: np.nan * s}, "NaN"),
    ],
)
def test_an_error_is_told(kind, names, words, answer, lab):
    found = answer(kind, **names)
    assert found["found"]["error"].startswith(words)
    assert found["right"]["error"] is None
    fits(lab, kind=kind, answer={"kind": kind, **found})


def test_what_the_reader_prints_does_no_harm(answer):
    def talkative(s):
        print("shape", s.shape)
        return naive(s)

    assert answer("softmax", softmax=talkative)["found"]["error"] is None


def test_each_bug_is_one(module):
    found = module.recorded()
    assert found["half"]["error"] == "NaN"
    right = found.pop("right")
    for kind in ("scale", "queries", "mask"):
        assert found[kind]["text"] != right["text"], kind
        assert abs(found[kind]["bits"] - right["bits"]) > 0.02, kind


@pytest.mark.parametrize("kind", ["softmax", "attention", "half", "scale", "queries", "mask"])
def test_every_choice(kind, lab):
    for phase in ("no", "asked", "failed"):
        fits(lab, kind=kind, phase=phase)


def test_the_page_asks_its_python(lab):
    right = {"bits": 2.5, "text": "Ay", "error": None}
    start = lab.start | {"phase": "asked", "seed": 4, "kind": "attention"}
    state, asked = waited(lab, start, [{"found": right, "right": right}])
    assert asked == ['__import__("own_attention").answer("attention", 4)']
    assert "the same text" in lab.call("state => lab.says(state, lab.numbers(state))", state)
    state, _ = waited(lab, start, [None])
    assert state["phase"] == "failed"
    other = {"bits": 3.5, "text": "Ay " * 70, "error": None}
    state, _ = waited(lab, start, [{"found": other, "right": right}])
    assert "another text" in lab.call("state => lab.says(state, lab.numbers(state))", state)
    fits(lab, **state)
