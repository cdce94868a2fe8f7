"""Tables of mistakes, written as one text of their sentences and the ways to make them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnbook.check.steps import Case, Mistake, Values, Way


def sentences(text: str) -> dict[str, str]:
    """Return the paragraphs of `text` by name.

    Each begins with its name and a colon; its further lines are indented more than the first.
    """
    lines = text.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    found: dict[str, str] = {}
    for line in lines:
        if line[margin : margin + 1].strip():
            name, _, begins = line.strip().partition(": ")
            found[name] = begins
        elif line.strip():
            found[name] += f" {line.strip()}"
    return found


def mistakes(
    text: str,
    ways: Mapping[str, tuple[Way, ...]],
    told_by: Mapping[str, Callable[[Any], bool]] | None = None,
) -> tuple[Mistake, ...]:
    """Return a mistake for each paragraph of `text`, in this order, with the ways to make it."""
    told_by = told_by or {}
    messages = sentences(text)
    unknown = {*ways, *told_by} - set(messages)
    if unknown:
        raise ValueError(f"no sentence for {', '.join(sorted(unknown))}")
    never = Mistake("", "").told_by
    return tuple(
        Mistake(name, message, ways.get(name, ()), told_by.get(name, never))
        for name, message in messages.items()
    )


def moved(
    change: Callable[[dict[str, Any]], dict[str, Any]],
    right: Callable[[np.ndarray, np.ndarray], Any],
    sentence: str,
) -> Callable[..., str | None]:
    """Return the property that ``right(result, other)`` holds if `change` replaces arguments."""

    def holds(case: Case, values: Values, again: Callable) -> str | None:
        others = again(**change(case.arguments))
        fits = others and others[0].shape == values[0].shape
        return sentence if fits and not np.all(right(values[0], others[0])) else None

    return holds


FUTURE = sentences(
    """
    another sequence leaks in: An output depends on another sequence of the batch. Look for a
        softmax or a .T over the axis of the batch, for batch_first, which is False by default in
        PyTorch, for a reshape that splits the batch, and for statistics of the batch as in
        BatchNorm.
    no causal mask: Every output depends on every input: there is no causal mask, or it does not
        arrive. Hide the scores of later keys, with −∞, before the softmax.
    softmax over the queries: Every output depends on every later input, but only through a few
        numbers: it looks like a softmax over the queries, whose sum runs over later queries, mask
        or not, or like a normalisation over the whole sequence. Take the softmax over the keys, the
        last axis.
    mask after the softmax: Every output depends on every later input, but these do no more than
        scale what each head gives: it looks like a mask after the softmax. Hidden weights are zero
        there, but their exponentials still stand in the sum that each row was divided by. Hide the
        scores, with −∞, before the softmax.
    causal mask inverted: Your model sees only the future: an output depends on later inputs and not
        on earlier ones. The causal mask is inverted or transposed. Here True means that query i may
        attend to key j, for j ≤ i; for nn.MultiheadAttention True means that it may not.
    off by one: Each output depends on the next {k} and on nothing later: the diagonal of the causal
        mask is too high. Query i may attend to keys j ≤ i: tril(…), and what is hidden is triu(…,
        diagonal=1). If there are more keys than queries, see where the last query stands.
    bare reshape: What sees what is the pattern of a bare reshape into {k} heads with a causal mask:
        one token becomes several places of the sequence, and the mask orders those. Split (n, h·d)
        to (n, h, d) and then swap the axes, and swap them back before you merge.
    large negative number: With inputs {k:g} times as large the future leaks in. Scores are hidden
        with a large negative number, and visible scores that are lower still are outbid by it. Only
        −∞ is below every score.
    mask after the exponential: With inputs {k:g} times as large later inputs turn an output into
        NaN, or wipe it out. It looks like a mask after the softmax or the exponential: a hidden
        score far above the visible ones makes these underflow, and 0/0 is NaN, or zero with a
        guard. Hide the scores, with −∞, before the maximum is taken.
    causal mask dropped: Every output depends on every input{mode}, where the causal mask is
        dropped. Look for `self.training`, and for a faster path through the code that takes no
        mask. A loss measured there is not that of the model.
    NaN: Your model returns NaN or infinity. A query that may attend to nothing gives NaN, since its
        scores are all −∞.
    together: An output depends on later inputs when all of them change, though not when one does.
        Look for a maximum, a mean or a norm over the whole sequence.
    unknown: An output depends on a later input, and the pattern is not one that this check knows.
        Look at how the mask is made, and at everything else that mixes positions: normalisation
        over the sequence, convolutions, pooling.
    """
)

PADDING = sentences(
    """
    another sequence leaks in: The output of a sequence depends on the tokens of another sequence of
        the batch. Look for a softmax or a .T over the axis of the batch, and for batch_first, which
        is False by default in PyTorch.
    another sequence's padding: The output of a sequence depends on the lengths of the others: it is
        masked with their padding. The mask stands along the wrong axis, or is repeated in the wrong
        order: where batch and heads share an axis, each mask stands h times in a row,
        repeat_interleave and not repeat.
    padding ignored: The mask changes nothing, and what stands in the padding moves the outputs of
        real tokens: the padding is ignored. Does the mask arrive, and in every layer?
    padding mask inverted: The real tokens see the padding and not each other: the mask is inverted.
        Here True means that a token may be attended to; for key_padding_mask in PyTorch True means
        that it is ignored.
    padding masked on the queries: The mask hides rows of the scores, not columns: padded queries
        see nothing, while real queries still see the padding. Padding is hidden as keys, with a
        mask (batch, 1, n).
    hidden score not −∞: A padded token has a fixed score that does not depend on it, such as 0, and
        its value is mixed in. exp(0) is 1, not 0: a hidden score must be −∞, before the softmax.
    not renormalised: The padding reaches the outputs only through a few numbers: it looks like a
        mask after the softmax. Hidden weights are zero then, but the rest no longer sum to one.
        Hide the scores, with −∞, before the softmax.
    padding counted: What stands in the padding does not matter, but how much of it there is does:
        it still counts in a sum. Tokens set to zero are not hidden, since a score of 0 has weight
        exp(0) = 1; a mean over n divides by too much. Hide the scores, with −∞, before the softmax.
    large negative number: With inputs {k:g} times as large the padding leaks in. Scores are hidden
        with a large negative number, and visible scores that are lower still are outbid by it. Only
        −∞ is below every score.
    mask after the exponential: With inputs {k:g} times as large the padding leaks in as NaN or
        infinity. It looks like a mask after the softmax or the exponential: a hidden score far
        above the visible ones makes these underflow, and 0/0 is NaN. Hide the scores, with −∞,
        before the softmax.
    batch of one: In a batch of one sequence what stands in the padding moves the outputs of real
        tokens, in a larger batch it does not: the mask is left out for a single sequence. That one
        may be padded too.
    NaN: The output of a real token is NaN or infinity. A query that may attend to nothing has
        scores that are all −∞; an inverted mask does this to a sequence without padding.
    unknown: What stands in the padding moves the outputs of real tokens, though the mask changes
        something. Is it boolean, or are 0 and 1 added to the scores? Does it reach every layer?
        Does anything else mix positions, such as a convolution, a mean or BatchNorm?
    """
)

ORDER = sentences(
    """
    another sequence leaks in: An output depends on another sequence of the batch. Look for a
        softmax or a .T over the axis of the batch, and for batch_first, which is False by default
        in PyTorch.
    causal mask: Outputs depend on earlier inputs only, so the order matters: there is a causal
        mask, or a model that reads from left to right.
    bare reshape: The order matters as it does with a bare reshape into {k} heads{where}. Split (n,
        h·d) to (n, h, d) and then swap the axes, and swap them back before you merge.
    order lost: Permuting the inputs leaves the outputs where they are: output i does not belong to
        input i. Look for a sort, and for one result that is cut into rows.
    place: Each output depends on its own input alone, and on the place where that stands: positions
        are added or rotated in, or each place has weights of its own.
    window: Which inputs an output depends on is decided by their distance, so the order matters: it
        is so in a convolution, and under a mask for a sliding window.
    unknown: The order of the inputs matters. Look for positions that are added or rotated in, for a
        mask, and for a reshape without a transpose where heads are split or merged.
    """
)

HEADS = sentences(
    """
    bare reshape: Heads are split and merged by a bare reshape to (h, n, d): each head gets a few
        tokens whole instead of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the
        axes of n and h, and swap them back before you merge.
    bare reshape in the split: Heads are split by a bare reshape to (h, n, d): each head gets a few
        tokens whole instead of a part of every token. Reshape (n, h·d) to (n, h, d), then swap the
        axes of n and h.
    missing transpose in the merge: Heads are merged by a bare reshape from (h, n, d), which puts
        rows of one head side by side. Swap the axes of h and n first, then reshape (n, h, d) to (n,
        h·d).
    attention over the heads: Each token attends over its own heads, and tokens never meet: the axes
        of n and h were not swapped, so the last two axes are (h, d) where they should be (n, d).
    interleaved features: Head i gets every h-th feature: the width is reshaped to (d, h). Here a
        head is a block of neighbouring features: reshape it to (h, d).
    scale by d_model: The scores are divided by √d_model, the width of all heads together. A dot
        product in one head has d_head terms: divide by √d_head.
    no scale: The scores are not scaled. Divide them by √d_head before the softmax.
    scale without the root: The scores are divided by d_head. Divide them by its square root,
        √d_head.
    scale multiplied: The scores are multiplied by √d_head. Divide them by it.
    no softmax: The values are weighed by the scores, or by their exponentials: the weights of a
        query do not sum to one. Take a softmax over the keys.
    softmax over the heads: The softmax runs over the heads, so they share out each key between
        them. It runs over the keys, the last axis of the scores.
    softmax over the queries: The softmax runs over the queries. It runs over the keys, the last
        axis of the scores.
    one head: There is one head over the whole width: the heads are never split, so all features
        share one set of weights.
    heads averaged: The heads are averaged or added up. They are put side by side, (n, h·d): each
        keeps its own features.
    one head for all: The same head, the first or the last, stands in every block of the output.
        Block i is head i.
    key used as value: The output is made of the keys. The keys are for the scores; the values are
        what is added up.
    query used as key: The scores are those of the queries with each other: the key is not used.
    query and key swapped: Query and key have changed places, which shows in their masks and their
        lengths: the rows of the scores belong to the queries, the columns to the keys.
    heads in another order: The right heads are there, but not side by side in their order: block i
        of the output must be head i. Look at how heads are collected and joined.
    features in another order: The right heads are there, but their features are mixed up: block i
        of the output must be head i, with its features in order. Look at the reshape of the merge.
    output scaled: The right heads are there, each number {k:.4g} times as large as it should be.
        The output of a head is softmax(q · k/√d_head) times the values, and nothing else.
    output projection: The right heads are there, but mixed by a matrix: an output projection W_O
        stands behind them. Check the part before it, or with the identity as W_O.
    mixed: The heads mix: one block of the output depends on another block of the inputs. Look at
        how heads are split and merged, and for a projection or a normalisation over the whole
        width.
    unknown: The heads do not mix, but a head is not attention of its block: look at the scale, the
        softmax, and at what else is done to query, key and value.
    """
)
