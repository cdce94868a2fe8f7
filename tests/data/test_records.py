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
    place |= {"settings": {}, "load_average": [13.69, 9.8, 7.9]}
    first, second, third = measured_on(record).splitlines()
    cpu = place["cpu"]
    assert f"{cpu['name']}, family {cpu['cpu_family']}, model {cpu['model']}, " in first
    assert place["date"][:10] in first
    assert all(blas["core_type"] in second for blas in place["blas"])
    assert "mkl in torch (PyTorch's loops: " in second  # it says nothing of MKL's
    assert third == "settings: none; load at the start: 13.7"
    place["settings"] = {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    place["load_average"] = None
    expected = "settings: OMP_NUM_THREADS=1, OPENBLAS_CORETYPE=Haswell"
    assert measured_on(record).splitlines()[2:] == [expected]
    once = {"date": "2031-02-03T04:05:06+00:00", "commit": "0123456789ab", "cpu": cpu}
    record["measured"] = {"a": once, "b": once | {"cpu": {}}, "c": once}
    assert measured_on(record).splitlines()[3:] == [
        "tables a, c again 2031-02-03, commit 0123456789",
        "table b again 2031-02-03, commit 0123456789, on another processor",
    ]
