"""Constrained decoding: a processor that allows only what an automaton accepts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnbook.arrays.arguments import check_int
from attnbook.arrays.array import array_namespace
from attnbook.arrays.lengths import placed
from attnbook.decoding.automaton import Automaton
from attnbook.decoding.processors import Processor


def constrain(
    automaton: Automaton, tokens: Sequence[str] | Sequence[bytes], stop: int
) -> Processor:
    """Return a processor that bans every token after which no valid text is possible.

    Parameters
    ----------
    automaton : Automaton
        The rule that says which texts are valid. It reads the tokens made after the prompt.
    tokens : sequence of str or of bytes
        ``tokens[i]`` is the text of token i, one or more symbols. Symbols are characters for an
        automaton of str, and bytes for an automaton of bytes. Tokens beyond the sequence and tokens
        with an empty text are banned.
    stop : int
        The token that ends a sequence. It is allowed where the text so far is valid, and only
        there. Pass it to ``stop=`` of the decoding function, too.

    Returns
    -------
    callable
        A logits processor for every decoding function. It sets the scores of banned tokens to −∞
        and does not change the others.

    Raises
    ------
    TypeError
        If `automaton` is not an Automaton, or if `tokens` are not all str or all bytes.
    ValueError
        If `stop` is below 0, or if no valid text consists of symbols that are tokens themselves.

    Notes
    -----
    A token of several symbols is allowed if the automaton can read all of them, even if the token
    crosses a boundary of the grammar. Each symbol that the automaton reads must itself be a token,
    as each byte is in a byte-pair encoding; transitions of other symbols are dropped. So a valid
    text can always be completed if `max_length` suffices, and a sequence that is cut is the
    beginning of a valid one. At each step the distribution is the model's, given that the next
    token is allowed. It is not the model's distribution given that the whole text is valid.
    Cost: O(V) once for each state that is reached, and then one table look-up per token made.

    References
    ----------
    Willard and Louf (2023), "Efficient guided generation for large language models"; chapter
    `decoding`.

    Examples
    --------
    >>> from attnbook.decoding import Prefix
    >>> process = constrain(Automaton.of_strings(["aba", "b"]), ["", "a", "b", "ab", "bb"], stop=0)
    >>> start, later = (Prefix(np.array([9]), np.array(made, int)) for made in ([], [3]))
    >>> process(np.zeros((2, 5)), [start, later])
    array([[-inf,   0.,   0.,   0., -inf],
           [-inf,   0., -inf, -inf, -inf]])
    """
    if not isinstance(automaton, Automaton):
        raise TypeError(f"automaton must be an Automaton, got {type(automaton).__name__}")
    stop = check_int("stop", stop)
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
        raise TypeError(f"tokens must be a sequence of str or bytes, got {type(tokens).__name__}")
    kinds = {type(token) for token in tokens}
    if kinds not in ({str}, {bytes}):
        names = sorted(kind.__name__ for kind in kinds)
        raise TypeError(f"tokens must be all str or all bytes, got {' and '.join(names) or 'none'}")
    symbols = {token[0] for i, token in enumerate(tokens) if len(token) == 1 and i != stop}
    try:
        automaton = automaton.over(symbols)
    except ValueError:
        raise ValueError("tokens must have those of which a valid text consists") from None
    begins: dict[Any, list[Any]] = {}  # the tokens of each first symbol, and the rest of each
    for i, token in enumerate(tokens):
        if token and i != stop:
            begins.setdefault(token[0], []).append((i, token[1:]))
    after: dict[int, dict[int, int]] = {}  # for each state where each possible token leads

    def moves(state):
        if state not in after:
            after[state] = {
                i: end
                for symbol, state_after in automaton.transitions[state].items()
                for i, rest in begins.get(symbol, ())
                if (end := automaton.run(rest, state_after)) is not None
            }
        return after[state]

    def process(log_p, prefixes):
        xp = array_namespace(log_p)
        possible = np.ones(log_p.shape, dtype=bool)
        for row, prefix in zip(possible, prefixes, strict=True):
            state = 0
            for token in prefix.made.tolist():
                state = None if state is None else moves(state).get(token)
            if state is not None:  # None after the end, where nothing is made any more
                row[:] = False
                row[list(moves(state))] = True
                row[stop] = state in automaton.accepting
        return xp.where(placed(possible, log_p), log_p, -xp.inf)

    return process
