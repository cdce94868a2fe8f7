"""What the chapters read is found in a checkout and in an installed package."""

import json

import pytest

from attnbook.data import measured_on, record_path, records


def test_a_record_of_the_checkout():
    record = json.loads(record_path("exact.cpu.json").read_text("utf8"))
    assert record["provenance"]["device"]["kind"] == "cpu"


def test_the_installed_package_comes_first(tmp_path, monkeypatch):
    (tmp_path / "exact.cpu.json").write_text("{}")
    monkeypatch.setattr(records, "INSTALLED", tmp_path)
    assert record_path("exact.cpu.json") == tmp_path / "exact.cpu.json"


@pytest.mark.parametrize("name", ["exact", "../index.md", 3, None])
def test_an_unknown_record_names_all(name):
    message = r"^name must be one of ablations\.cpu\.json, .*writer\.cpu\.json, .*, got "
    with pytest.raises(ValueError, match=message):
        record_path(name)


def test_where_a_record_was_measured():
    record = json.loads(record_path("writer.cpu.json").read_text("utf8"))
    place = record["provenance"]
    place["settings"] = {}
    first, second, third = measured_on(record).splitlines()
    assert place["device"]["name"] in first
    assert place["date"][:10] in first
    assert all(blas["core_type"] in second for blas in place["blas"])
    assert third == "settings: none"
    place["settings"] = {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    expected = "settings: OMP_NUM_THREADS=1, OPENBLAS_CORETYPE=Haswell"
    assert measured_on(record).splitlines()[2] == expected
