"""The plays are complete and plain, and no speech of a test play is in the training text."""

import bz2
import hashlib
import importlib.util
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from attnbook.data import plays

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("make_plays", ROOT / "tools/make_plays.py")
make_plays = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_plays)

SPEAKER = re.compile(r"[A-Z][A-Z' &,-]*:")
PARTS = ("train", "validation", "test")


def test_every_play_is_in_one_part():
    data = plays()
    assert tuple(data.titles) == PARTS
    everything = [title for part in PARTS for title in data.titles[part]]
    assert sorted(everything) == list(data.texts)
    assert [len(data.titles[part]) for part in PARTS] == [34, 2, 2]
    for part in PARTS:
        texts = "".join(data.texts[title] for title in data.titles[part])
        assert getattr(data, part) == texts
    assert [len(data.train), len(data.validation), len(data.test)] == [4330398, 237026, 213688]


@pytest.mark.parametrize("title", plays().texts)
def test_a_play_is_a_row_of_speeches(title):
    text = plays().texts[title]
    assert text.endswith("\n\n")
    assert set(text) <= set(map(chr, range(32, 127))) | {"\n"}
    speeches = text[:-2].split("\n\n")
    assert len(speeches) > 400
    for speech in speeches:
        speaker, *lines = speech.split("\n")
        assert SPEAKER.fullmatch(speaker)
        assert lines
        assert all(line.strip() == line != "" and len(line) < 80 for line in lines)
        assert not any(SPEAKER.match(line) and "  " in line for line in lines)


def test_no_markup_and_no_direction_is_left():
    everything = "".join(plays().texts.values())
    assert not set(r'*_\#[]{}<>|`~"$') & set(everything)
    assert (
        re.findall(r"(?m)^(?:Exeunt|Exit\b|Re-enter|SCENE|ACT [IV]+|EPILOGUE$|SONG).*", everything)
        == []
    )
    alone = re.findall(r"(?m)^[A-Z][A-Z' ]{2,}$", everything)
    assert alone == ["CAIUS MARCIUS"] or alone == [], alone


def test_no_long_speech_is_in_two_parts():
    data = plays()
    seen = {}
    for title, text in data.texts.items():
        for speech in text.split("\n\n"):
            if len(speech) > 120:
                seen.setdefault(speech.partition("\n")[2], set()).add(title)
    assert [titles for titles in seen.values() if len(titles) > 1] == []


def test_known_lines():
    data = plays()
    assert data.texts["Macbeth"].startswith("FIRST WITCH:\nWhen shall we three meet again\n")
    hamlet = "HAMLET:\nTo be, or not to be: that is the question:\n"
    assert data.train.count(hamlet) == 1
    assert hamlet not in data.validation + data.test
    # names that the source had cut, lost or run into the line
    assert "\nBISHOP OF WINCHESTER:\nHe was a king bless'd of the King of kings.\n" in data.train
    assert "\nLORD CHIEF-JUSTICE:\nWhat's he that goes there?\n" in data.train
    assert data.train.count("\nLUCILIUS' SERVANT:\n") == 16
    assert "\nEPILOGUE:\nFirst my fear; then my courtesy; last my speech.\n" in data.train


def test_the_object_is_shared_and_frozen():
    data = plays()
    assert plays() is data
    with pytest.raises(TypeError):
        data.texts["Macbeth"] = ""
    with pytest.raises(TypeError):
        data.titles["test"] = ()
    with pytest.raises(AttributeError):
        data.texts = {}


def test_the_stored_file_is_the_one_that_was_made():
    stored = resources.files("attnbook.data").joinpath("plays.bz2").read_bytes()
    assert len(stored) < 1_500_000
    assert (
        hashlib.sha256(stored).hexdigest()
        == "fa4dfb6508f8f0cc7c0f3f69b67004fd181f32ca1f7090d14d92825676326292"
    )


MARKDOWN = r"""# A Play

## ACT I

### SCENE I. A street.

_Enter ADAM and
EVE_

**Adam**
Good morrow -- they say,
and 'well'.

_Aside_

I go on — here.

__\[Reads]_
**EVE**
_\[Within]_
It is \--  mine _\[own]_ word.
LADY

**OF ELSEWHERE**
Yes.
*Sound a horn.*
Lord Chief-Justice He hath, & c.

## ACT II

Left out.
"""


def test_the_script_reads_speakers_and_leaves_directions_out():
    title, text = make_plays.play("plays/a-play.md", MARKDOWN.replace("\n", "  \n"))
    assert title == "A Play"
    assert text == (
        "ADAM:\nGood morrow -- they say,\nand 'well'.\nI go on -- here.\n\n"
        "EVE:\nIt is -- mine own word.\n\n"
        "LADY OF ELSEWHERE:\nYes.\n\n"
        "LORD CHIEF-JUSTICE:\nHe hath, &c.\n\n"
    )


def test_the_script_writes_the_plays_by_title_and_the_same_each_time():
    texts = {"A": "X:\none\n\n", "B": "Y:\ntwo\n\n"}
    packed = make_plays.pack(texts)
    assert bz2.decompress(packed) == b"# A\n\nX:\none\n\n# B\n\nY:\ntwo\n\n"
    assert packed == make_plays.pack(texts)


def test_the_script_refuses_another_wheel(tmp_path):
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"other")
    command = [sys.executable, ROOT / "tools/make_plays.py", wheel, "--output", tmp_path / "out"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "must have the sha256" in result.stderr
    assert not (tmp_path / "out").exists()
