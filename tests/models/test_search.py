"""The search over the lines of the plays."""

import sys
from pathlib import Path

import numpy as np
import pytest

from attnbook.data import plays
from attnbook.models import recorded_sentences

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))  # no part of the installed package

import search_plays


def test_every_line_is_there_once():
    found = search_plays.all_lines()
    lines = [line for _, _, line in found]
    assert len(set(lines)) == len(lines) > 100_000
    assert ("Macbeth", "FIRST WITCH", "When shall we three meet again") in found
    texts = plays().texts
    for play, speaker, line in found[::997]:
        assert line in texts[play]
        assert f"{speaker}:\n" in texts[play]


def test_what_was_embedded_is_found(published, monkeypatch, tmp_path, capsys):
    recorded = recorded_sentences()
    lines = list(zip(recorded.plays, recorded.speakers, recorded.lines, strict=True))[35:55]
    monkeypatch.setattr(search_plays, "all_lines", lambda: lines)
    monkeypatch.setattr(search_plays, "sentence_encoder", lambda: published[0])
    monkeypatch.setattr(search_plays, "cache", lambda: tmp_path)
    monkeypatch.setattr(search_plays, "CHUNK", 7)
    assert search_plays.main(["embed", "--batch-size", "3"]) == 0
    stored = np.load(tmp_path / "plays.npy")
    np.testing.assert_allclose(stored, recorded.vectors[35:55], atol=2e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["plays.npy"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert search_plays.main(["find", "I cannot sleep because I feel guilty.", "-n", "2"]) == 0
    first, _, last = capsys.readouterr().out.splitlines()
    assert "Macbeth does murder sleep" in first
    assert first.endswith("(MACBETH, Macbeth)")
    assert last.endswith("s among 20 lines")
    monkeypatch.setattr(search_plays, "all_lines", lambda: lines[1:])
    with pytest.raises(SystemExit, match="the plays have changed"):
        search_plays.main(["find", "sleep"])
