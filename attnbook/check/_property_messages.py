"""What the checks of properties say: the mistake by name, and the sentence that goes with it."""

FUTURE: dict[str | None, str] = {
    "another sequence leaks in": (
        "An output depends on another sequence of the batch. Look for a softmax or a .T over the "
        "axis of the batch, for batch_first, which is False by default in PyTorch, for a reshape "
        "that splits the batch, and for statistics of the batch as in BatchNorm."
    ),
    "no causal mask": (
        "Every output depends on every input: there is no causal mask, or it does not arrive. Hide "
        "the scores of later keys, with −∞, before the softmax."
    ),
    "softmax over the queries": (
        "Every output depends on every later input, but only through a few numbers: it looks like "
        "a softmax over the queries, whose sum runs over later queries, mask or not, or like a "
        "normalisation over the whole sequence. Take the softmax over the keys, the last axis."
    ),
    "mask after the softmax": (
        "Every output depends on every later input, but these do no more than scale what each head "
        "gives: it looks like a mask after the softmax. Hidden weights are zero there, but their "
        "exponentials still stand in the sum that each row was divided by. Hide the scores, with "
        "−∞, before the softmax."
    ),
    "causal mask inverted": (
        "Your model sees only the future: an output depends on later inputs and not on earlier "
        "ones. The causal mask is inverted or transposed. Here True means that query i may attend "
        "to key j, for j ≤ i; for nn.MultiheadAttention True means that it may not."
    ),
    "off by one": (
        "Each output depends on the next {k} and on nothing later: the diagonal of the causal mask "
        "is too high. Query i may attend to keys j ≤ i: tril(…), and what is hidden is triu(…, "
        "diagonal=1). If there are more keys than queries, see where the last query stands."
    ),
    "bare reshape": (
        "What sees what is the pattern of a bare reshape into {k} heads with a causal mask: one "
        "token becomes several places of the sequence, and the mask orders those. Split "
        "(n, h·d) to (n, h, d) and then swap the axes, and swap them back before you merge."
    ),
    "large negative number": (
        "With inputs {k:g} times as large the future leaks in. Scores are hidden with a large "
        "negative number, and visible scores that are lower still are outbid by it. Only −∞ is "
        "below every score."
    ),
    "mask after the exponential": (
        "With inputs {k:g} times as large later inputs turn an output into NaN, or wipe it out. It "
        "looks like a mask after the softmax or the exponential: a hidden score far above the "
        "visible ones makes these underflow, and 0/0 is NaN, or zero with a guard. Hide the "
        "scores, with −∞, before the maximum is taken."
    ),
    "causal mask dropped": (
        "Every output depends on every input{mode}, where the causal mask is dropped. Look for "
        "`self.training`, and for a faster path through the code that takes no mask. A loss "
        "measured there is not that of the model."
    ),
}


PADDING: dict[str | None, str] = {
    "another sequence leaks in": (
        "The output of a sequence depends on the tokens of another sequence of the batch. Look for "
        "a softmax or a .T over the axis of the batch, and for batch_first, which is False by "
        "default in PyTorch."
    ),
    "another sequence's padding": (
        "The output of a sequence depends on the lengths of the others: it is masked with their "
        "padding. The mask stands along the wrong axis, or is repeated in the wrong order: where "
        "batch and heads share an axis, each mask stands h times in a row, repeat_interleave and "
        "not repeat."
    ),
    "padding ignored": (
        "The mask changes nothing, and what stands in the padding moves the outputs of real "
        "tokens: the padding is ignored. Does the mask arrive, and in every layer?"
    ),
    "padding mask inverted": (
        "The real tokens see the padding and not each other: the mask is inverted. Here True means "
        "that a token may be attended to; for key_padding_mask in PyTorch True means that it is "
        "ignored."
    ),
    "padding masked on the queries": (
        "The mask hides rows of the scores, not columns: padded queries see nothing, while real "
        "queries still see the padding. Padding is hidden as keys, with a mask (batch, 1, n)."
    ),
    "hidden score not −∞": (
        "A padded token has a fixed score that does not depend on it, such as 0, and its value is "
        "mixed in. exp(0) is 1, not 0: a hidden score must be −∞, before the softmax."
    ),
    "not renormalised": (
        "The padding reaches the outputs only through a few numbers: it looks like a mask after "
        "the softmax. Hidden weights are zero then, but the rest no longer sum to one. Hide the "
        "scores, with −∞, before the softmax."
    ),
    "padding counted": (
        "What stands in the padding does not matter, but how much of it there is does: it still "
        "counts in a sum. Tokens set to zero are not hidden, since a score of 0 has weight exp(0) "
        "= 1; a mean over n divides by too much. Hide the scores, with −∞, before the softmax."
    ),
    "large negative number": (
        "With inputs {size:g} times as large the padding leaks in. Scores are hidden with a large "
        "negative number, and visible scores that are lower still are outbid by it. Only −∞ is "
        "below every score."
    ),
    "mask after the exponential": (
        "With inputs {size:g} times as large the padding leaks in as NaN or infinity. It looks "
        "like a mask after the softmax or the exponential: a hidden score far above the visible "
        "ones makes these underflow, and 0/0 is NaN. Hide the scores, with −∞, before the softmax."
    ),
    "batch of one": (
        "In a batch of one sequence what stands in the padding moves the outputs of real tokens, "
        "in a larger batch it does not: the mask is left out for a single sequence. That one may "
        "be padded too."
    ),
    "NaN": (
        "The output of a real token is NaN or infinity. A query that may attend to nothing has "
        "scores that are all −∞; an inverted mask does this to a sequence without padding."
    ),
    None: (
        "What stands in the padding moves the outputs of real tokens, though the mask changes "
        "something. Is it boolean, or are 0 and 1 added to the scores? Does it reach every layer? "
        "Does anything else mix positions, such as a convolution, a mean or BatchNorm?"
    ),
}


PERMUTATION: dict[str | None, str] = {
    "another sequence leaks in": (
        "An output depends on another sequence of the batch. Look for a softmax or a .T over the "
        "axis of the batch, and for batch_first, which is False by default in PyTorch."
    ),
    "causal mask": (
        "Outputs depend on earlier inputs only, so the order matters: there is a causal mask, or a "
        "model that reads from left to right."
    ),
    "bare reshape": (
        "The order matters as it does with a bare reshape into {k} heads{where}. Split (n, h·d) to "
        "(n, h, d) and then swap the axes, and swap them back before you merge."
    ),
    None: (
        "The order of the inputs matters. Look for positions that are added or rotated in, for a "
        "mask, and for a reshape without a transpose where heads are split or merged."
    ),
}
