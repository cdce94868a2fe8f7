"""What processes say where arguments do not fit, and where one of them is killed."""

import gc
import re
import signal
from datetime import timedelta
from unittest import mock

import numpy as np
import pytest
import ring_cases
import torch

from attnbook.distributed.processes import AGREED, Processes

SAME = "all ranks must have "


@pytest.mark.parametrize(("call", "kind", "message"), ring_cases.ERRORS)
def test_an_error_says_argument_expected_and_got(equal, call, kind, message):
    assert [of_rank["errors"][call] for of_rank in equal] == [(kind.__name__, message)] * 3


def test_shards_of_different_lengths_are_an_error_on_all_processes(equal):
    shape = "query (3, 2, {0}, 3), key (3, 2, {0}, 3), value (3, 2, {0}, 3)"
    shapes = [shape.format(n) for n in (1, 2, 3)]
    got = [of_rank["errors"]["uneven"] for of_rank in equal]
    for rank, other in ((0, 1), (1, 0), (2, 0)):
        message = f"{SAME}{shapes[rank]}, as rank {rank} has, got {shapes[other]} on rank {other}"
        assert got[rank] == ("ValueError", message)
    for of_rank in equal:
        kind, message = of_rank["errors"]["queries"]
        assert kind == "ValueError"
        assert message.startswith(f"{SAME}query (2, ")


def test_what_one_process_refuses_is_an_error_on_all(equal):
    own = "query must have an even number of tokens for zigzag shards, got 3"
    theirs = f"rank 0 of 3 refused its arguments: ValueError: {own}"
    got = [of_rank["errors"]["refused by rank 0"] for of_rank in equal]
    assert got == [("ValueError", own), ("ValueError", theirs), ("ValueError", theirs)]


def test_a_sketch_that_never_had_keys(equal):
    for rank, of_rank in enumerate(equal):
        message = f"sketch must have had keys on rank {rank}, got none"
        assert of_rank["errors"]["no keys"] == ("ValueError", message)


def test_evidence_is_for_all_processes_or_for_none(equal):
    asked = [f"return_evidence={rank == 0}" for rank in range(3)]
    for rank, other in ((0, 1), (1, 0), (2, 0)):
        message = f"{SAME}{asked[rank]}, as rank {rank} has, got {asked[other]} on rank {other}"
        assert equal[rank]["errors"]["evidence"] == ("ValueError", message)


@pytest.mark.parametrize(
    ("name", "even", "odd"),
    [
        ("decode scale", r"scale 0\.5", r"scale 5\.0"),
        ("scale", r"scale 0\.5", r"scale 5\.0"),
        ("dtype", "float32", "float64"),
        ("n_probes", "n_probes 1", "n_probes 2"),
        ("planes", "hash SimHash with the digest {} of its numbers", None),
        ("shape", "hash SimHash with the digest {} of its numbers", None),
        ("lifted", "hash LiftedHash with the digest {} of its numbers", None),
        ("tables", "hash GivenHash with 3 tables", "hash GivenHash with 2 tables"),
        (
            "class",
            "hash GivenHash with 3 tables",
            "hash SimHash with the digest {} of its numbers",
        ),
    ],
)
def test_what_changes_an_answer_must_be_the_same_on_all_processes(equal, name, even, odd):
    digests = "([0-9a-f]{8})"
    even, odd = even.replace("{}", digests), (odd or even).replace("{}", digests)
    for rank, (ours, other, theirs) in enumerate(((even, 1, odd), (odd, 0, even), (even, 1, odd))):
        kind, message = equal[rank]["apart"][name]
        assert kind == "ValueError"
        wanted = f"{SAME}{ours}, as rank {rank} has, got {theirs} on rank {other}"
        found = re.fullmatch(wanted, message)
        assert found
        assert len(set(found.groups())) == len(found.groups())


def test_an_impl_that_is_not_installed_on_one_process_is_an_error_on_all(equal):
    own = "impl='packed' needs numba: import of attnbook.kernels.packed halted; None in sys.modules"
    own += "; pip install numba"
    theirs = f"rank 1 of 3 refused its arguments: ImportError: {own}"
    got = [of_rank["apart"]["not installed"] for of_rank in equal]
    assert got == [("ValueError", theirs), ("ImportError", own), ("ValueError", theirs)]


def test_a_process_outside_its_group_is_told_so(equal):
    outside = ("ValueError", "group must hold this process, got a group of other processes")
    assert [of_rank["apart"]["group"] for of_rank in equal] == [outside, ("nothing", ""), outside]


def test_the_longest_timeout_is_one(equal):
    assert [of_rank["apart"]["longest timeout"] for of_rank in equal] == [("nothing", "")] * 3


def test_a_hash_in_arrays_of_another_library_is_the_same(equal):
    assert [of_rank["apart"]["library"] for of_rank in equal] == [("nothing", "")] * 3


def test_what_a_group_has_agreed_on_it_does_not_compare_again(equal):
    compared = ("gather", 512)
    for rank, of_rank in enumerate(equal):
        found = of_rank["messages"]
        for name in ("ring", "decode"):
            # float32: 2 heads, values of width 3 and two sums a query
            own = [("gather", 4 * 2 * n * (3 + 2)) if name == "decode" else None for n in (4, 6)]
            short, long = ([x] if x else [] for x in own)
            sent = [x for x, _ in found[name]]
            assert sent == [[compared, *short], short, [compared, *long], short]
            np.testing.assert_array_equal(found[name][0][1], found[name][1][1])
        assert found["pair"] == ([[compared], []] if rank != 1 else [])  # another group asks anew
        assert found["impl"] == [compared]
        assert found["mean"] == [[compared, ("reduce", 8)], [("reduce", 8)]]
        assert found["gradients"] == [[compared, ("reduce", 20)], [("reduce", 20)]]


def test_what_was_agreed_on_goes_with_its_group():
    class Group:
        pass

    group = Group()
    AGREED[group] = {"query (2, 4, 3)"}
    del group
    gc.collect()
    assert not [x for x in AGREED if isinstance(x, Group)]


def test_its_own_error_is_raised_where_the_others_do_not_ask():
    processes = Processes(mock.Mock(), 0, 2, timedelta(seconds=1))

    def check():
        raise ValueError("x must be odd, got 2")

    def fails(*_):
        raise RuntimeError("rank 0 of 2 failed to gather the shapes")

    with mock.patch.object(Processes, "gather", fails):
        with pytest.raises(ValueError, match="x must be odd, got 2"):
            processes.agree(check, torch.ones(2))
        with pytest.raises(RuntimeError, match="rank 0 of 2 failed"):
            processes.agree(lambda: (None, ["query"]), torch.ones(2))


def test_a_message_lies_where_its_tensor_lies():
    sent = []

    def gather(ours, x, what):
        sent.append(x.device)
        raise RuntimeError("enough")

    with mock.patch.object(Processes, "gather", gather):
        for about in (torch.ones(2), torch.ones(2, device="meta"), [1.0]):
            with pytest.raises(RuntimeError, match="enough"):
                Processes(mock.Mock(), 0, 2, timedelta(seconds=1)).agree(
                    lambda: (None, ["query"]), about
                )
    assert [x.type for x in sent] == ["cpu", "meta", "cpu"]


@pytest.mark.parametrize(("on", "limits"), [("cpu", [timedelta(seconds=1)]), ("cuda:1", [])])
def test_the_device_of_a_message_says_who_waits(on, limits):
    work = mock.Mock()
    Processes(object(), 0, 1, timedelta(seconds=1)).wait(work, "to wait", torch.device(on))
    work.wait.assert_called_once_with(*limits)


def test_there_is_no_gradient_of_second_order(equal):
    message = "ring_attention has no gradient of second order; attention by the reference has one"
    assert [of_rank["errors"]["twice"] for of_rank in equal] == [("RuntimeError", message)] * 3


def test_no_group_is_an_error(equal):
    message = (
        "group must be a group of processes that has been initialised, got none: start the "
        "program with torchrun and call torch.distributed.init_process_group first"
    )
    assert [of_rank["no group"] for of_rank in equal] == [("RuntimeError", message)] * 3


def test_an_output_does_not_keep_the_default_group(equal):
    # one that did kept its threads alive while Python ends, and they aborted the process then
    for of_rank in equal:
        before, during = of_rank["references"]
        assert during == before


@pytest.mark.weekly
def test_a_killed_process_is_an_error_on_all_others(lost):
    codes, found, _ = lost
    assert codes == [0, 0, -signal.SIGKILL, 0]
    assert sorted(found) == [0, 1, 3]
    for rank, of_rank in found.items():
        kind, message = of_rank["lost"]
        assert kind == "RuntimeError"
        assert message.startswith(f"rank {rank} of 4 failed to ")
        assert "keys and values in step" in message
        assert "another process has ended, or did not answer in 600 s" in message
