"""What processes say where arguments do not fit, and where one of them is killed."""

import signal

import pytest

SAME = "all ranks must have "
ERRORS = {
    "heads": (
        "ValueError",
        "key must have the leading axes (2,) of query, or a number of heads that divides the last "
        "of them, got (3,)",
    ),
    "value heads": ("ValueError", "value must have the leading axes (2,) of key, got (1,)"),
    "width": (
        "ValueError",
        "key must have shape (..., n_k, 3) to match query, got (4, 2)",
    ),
    "values": ("ValueError", "value must have shape (..., 4, d_v) to match key, got (2, 3)"),
    "causal": (
        "ValueError",
        "key must have as many tokens as query (2) for is_causal=True, got 4",
    ),
    "odd": (
        "ValueError",
        "query must have an even number of tokens for zigzag shards, got 3",
    ),
    "layout": (
        "ValueError",
        "layout must be one of contiguous, striped, zigzag, got 'spiral'",
    ),
    "impl": ("ValueError", "impl must be one of tiled, numba, packed, triton, gluon, got 'naive'"),
    "dtype": ("TypeError", "key must have the dtype of query (float32), got float64"),
    "array": ("TypeError", "query must be a tensor of PyTorch, got ndarray"),
    "group": (
        "TypeError",
        "group must be a ProcessGroup of torch.distributed or None, got str",
    ),
    "timeout": ("ValueError", "timeout must be above 0 seconds, got 0"),
    "flag": ("TypeError", "is_causal must be a bool, got int"),
    "axes": ("ValueError", "query must have shape (..., n_q, d_k), got (3,)"),
    "no head": ("ValueError", "query must have at least 1 head, got shape (0, 4, 3)"),
    "mask": (
        "ValueError",
        "mask must broadcast to the shape of the scores (..., n_q, n_k) = (4, 4), got (4, 5)",
    ),
    "tail": ("ValueError", "sketch must have tail 'none' to be sharded, got 'moments'"),
    "heavy": ("ValueError", "sketch must have n_heavy 0 to be sharded, got 2"),
    "no sketch": ("TypeError", "sketch must be SketchAttention, got Tensor"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_argument_expected_and_got(equal, name):
    assert [of_rank["errors"][name] for of_rank in equal] == [ERRORS[name]] * 3


def test_shards_of_different_lengths_are_an_error_on_all_processes(equal):
    shape = "query (3, 2, {0}, 3), key (3, 2, {0}, 3), value (3, 2, {0}, 3), torch.float32 and "
    shapes = [(shape + "is_causal=False").format(n) for n in (1, 2, 3)]
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
    got = [of_rank["errors"]["no keys"] for of_rank in equal]
    for rank in range(3):
        assert got[rank] == (
            "ValueError",
            f"sketch must have had keys on rank {rank}, got none",
        )


def test_there_is_no_gradient_of_second_order(equal):
    for of_rank in equal:
        kind, message = of_rank["errors"]["twice"]
        assert kind == "RuntimeError"
        assert message == (
            "ring_attention has no gradient of second order; attention by the reference has one"
        )


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
