"""Work that several threads share."""

import os

import pytest

from attnbook.arrays.threads import in_parts, n_threads_for


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 4, 17])
def test_parts_cover_everything_once(n, n_threads):
    seen = []
    in_parts(lambda start, stop, part: seen.extend(range(start, stop)), n, n_threads)
    assert sorted(seen) == list(range(n))


def test_an_error_in_a_part_is_raised():
    def fail(start, stop, part):
        if part == 1:
            raise RuntimeError("in part 1")

    with pytest.raises(RuntimeError, match="in part 1"):
        in_parts(fail, 10, 2)


def test_a_part_of_parts_does_not_wait_for_itself():
    seen = []

    def work(start, stop, part):
        in_parts(lambda a, b, _: seen.extend(range(start + a, start + b)), stop - start, 2)

    in_parts(work, 23, 2)
    assert sorted(seen) == list(range(23))


def test_number_of_threads(monkeypatch):
    assert n_threads_for(0) == 1
    assert n_threads_for(5, 7) == 7
    assert n_threads_for(599, worth=300) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert n_threads_for(10**9) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert n_threads_for(10**9) == n_threads_for(10**10) >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert n_threads_for(899, worth=300) == 2
    assert n_threads_for(10**9) == 8
