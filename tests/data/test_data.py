"""The data is the real one, complete and unchanged, and needs no network."""

import hashlib
import importlib
import importlib.util
import inspect
import subprocess
import sys
import zipfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from attnbook import data
from attnbook.data import digits, text

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("make_digits", ROOT / "tools/make_digits.py")
make_digits = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_digits)
PER_CLASS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_the_real_ones():
    data = digits()
    assert data.images.shape == (1797, 8, 8)
    assert data.labels.shape == (1797,)
    assert (data.images.dtype, data.labels.dtype) == (np.float64, np.int64)
    assert np.bincount(data.labels).tolist() == PER_CLASS
    sixteenths = data.images * 16
    assert (sixteenths.min(), sixteenths.max()) == (0, 16)
    np.testing.assert_array_equal(sixteenths, np.round(sixteenths))
    assert (sixteenths.max(axis=(1, 2)) > 0).all()
    stored = resources.files("attnbook.data").joinpath("digits.npz").read_bytes()
    expected = "aa64e930663d6e9271e1566601d65e70236553f73ec6cb041a4ab37167cf1d04"
    assert hashlib.sha256(stored).hexdigest() == expected


def test_digits_are_fresh_and_frozen():
    first = digits()
    first.images[:] = first.labels[:] = 7
    assert digits().images.max() == 1
    assert np.bincount(digits().labels).tolist() == PER_CLASS
    with pytest.raises(AttributeError):
        first.images = None


def test_equal_to_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    source, data = datasets.load_digits(), digits()
    np.testing.assert_array_equal(data.images * 16, source.images)
    np.testing.assert_array_equal(data.labels, source.target)


def test_script_remakes_the_file(tmp_path):
    pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    contents = []
    for name in ("first.npz", "second.npz"):
        assert make_digits.main(["--output", str(tmp_path / name)]) == 0
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    # zlib versions compress to different bytes, so what is compared with the file is its content
    with np.load(tmp_path / "first.npz") as made:
        np.testing.assert_array_equal(made["images"] / 16, digits().images)
        np.testing.assert_array_equal(made["labels"], digits().labels)


def test_script_without_scikit_learn_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match="pip install scikit-learn"):
        make_digits.from_scikit_learn()


def test_text_has_every_paragraph_once_in_the_order_of_the_names():
    topics = pytest.importorskip("pydoc_data.topics", reason="no pydoc_data here").topics
    expected = []
    for name in sorted(topics):
        for paragraph in topics[name].strip("\n").split("\n\n"):
            if paragraph not in expected:
                expected.append(paragraph)
    found = text().removesuffix("\n").split("\n\n")
    assert len(found) == len(expected) > 2000
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs or not theirs.isascii() or "\t" in theirs
    assert sum(ours == theirs for ours, theirs in zip(found, expected, strict=True)) > 1500


def test_text_does_not_depend_on_the_order_of_the_module(monkeypatch):
    module = pytest.importorskip("pydoc_data.topics", reason="no pydoc_data here")
    usual, backwards = text(), dict(reversed(module.topics.items()))
    monkeypatch.setattr(module, "topics", backwards)
    assert text() == usual


def test_text_is_printable_ascii():
    assert set(text()) <= {"\n", *map(chr, range(32, 127))}


@pytest.mark.parametrize(
    ("prose", "plain"),
    [
        ("it’s ‘so’", "it's 'so'"),
        ("“a” – b — c…", '"a" - b - c...'),
        ("Straße, naïve, 90°", "Strasse, naive, 90"),
        ("a\tb\n\tc\r\n", "a       b\n        c\n"),
        ("ﬁ 日本", "fi "),
    ],
)
def test_text_without_typography(prose, plain):
    module = importlib.import_module("attnbook.data.prose")
    assert module._to_ascii(prose) == plain


def test_text_without_pydoc_data_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match=r'lacks; Pyodide has it after loadPackage\("pydoc_data"'):
        text()


def test_reading_needs_neither_network_nor_scikit_learn():
    code = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise AssertionError('no network')\n"
        "socket.socket = socket.create_connection = refuse\n"
        "import attnbook.data\n"
        "assert len(attnbook.data.digits().labels) == 1797\n"
        "assert attnbook.data.text()\n"
        "assert not {'sklearn', 'scipy', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = folder.glob("attnbook-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


PACKED = """
attnbook/compilers/numbers.cu attnbook/data/date_words.toml attnbook/data/digits.npz
attnbook/data/plays.bz2 attnbook/data/records/exact.cpu.json attnbook/data/records/long_cache.npz
attnbook/kernels/cuda/layout.cu attnbook/kernels/cuda/tiled.cu
attnbook/models/recorded_sentences.npz attnbook/models/sentence_encoder.md
attnbook/sketch/index.cu attnbook/sketch/sketch.cu licenses/LICENSE licenses/book/LICENSE
licenses/attnbook/data/LICENSE-digits licenses/attnbook/data/LICENSE-plays
licenses/attnbook/models/LICENSE-sentence-encoder
"""


def test_wheel_contains_more_than_modules(wheel_names):
    missing = [end for end in PACKED.split() if not any(x.endswith(end) for x in wheel_names)]
    assert missing == []


def test_wheel_contains_the_package_alone(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attnbook"}


def test_public_names():
    assert data.__all__ == sorted(data.__all__)
    everything = {}
    exec("from attnbook.data import *", everything)
    assert set(data.__all__) == {name for name in everything if not name.startswith("__")}
    for name in data.__all__:
        thing = getattr(data, name)
        assert thing.__module__.startswith("attnbook.data.")
        assert thing.__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize(
    "name", [name for name in data.__all__ if inspect.isfunction(getattr(data, name))]
)
def test_each_function_says_what_it_takes_gives_and_raises(name):
    function = getattr(data, name)
    text = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    for section in ["Returns", "Raises", "Examples", *(["Parameters"] if parameters else [])]:
        assert f"{section}\n{'-' * len(section)}\n" in text or name in ("digits", "plays"), section
    for parameter in parameters:
        assert parameter in text.split("Parameters\n")[1].split("\n\n")[0]
