"""Finite automata, which say symbol by symbol which strings are valid."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnbook.arrays.arguments import check_int
from attnbook.decoding.pattern import positions_of

MOST_STEPS = 10_000_000
"""The most positions, classes and symbols that are visited while an automaton is made."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic finite automaton in which every state can lead to a valid string.

    It starts in state 0 and reads a string symbol by symbol. Symbols are the characters of a str,
    or the bytes (ints) of bytes. A string is valid if it ends in an accepting state.

    Attributes
    ----------
    transitions : sequence of mappings
        ``transitions[state][symbol]`` is the next state. If the symbol is missing, no valid string
        continues with it. States that are never reached or lead to no valid string are removed, and
        the others are renumbered.
    accepting : set or list of int
        The states in which a string may end, stored as a frozenset.

    Raises
    ------
    TypeError
        If the parts have different types.
    ValueError
        If a state is unknown, or if no string is valid.

    References
    ----------
    Hopcroft, Motwani and Ullman (2006), "Introduction to automata theory, languages, and
    computation", chapters 2 and 3; Willard and Louf (2023), "Efficient guided generation for large
    language models"; chapter `decoding`.

    Examples
    --------
    >>> even = Automaton([{"a": 1}, {"a": 0}], [0])
    >>> even.accepts("aaaa"), even.accepts("aaa")
    (True, False)
    >>> Automaton.of_strings(["tea", "ten"]).transitions
    ({'t': 1}, {'e': 2}, {'a': 3, 'n': 3}, {})
    >>> Automaton.of_pattern("(ha)+!?").accepts("hahaha!")
    True
    """

    transitions: Sequence[Mapping[Hashable, int]]
    accepting: Collection[int]

    def __post_init__(self):
        n = len(self.transitions) if isinstance(self.transitions, Sequence) else 0
        if not n or not all(isinstance(moves, Mapping) for moves in self.transitions):
            raise TypeError("transitions must be a sequence of mappings, one for each state")
        if not isinstance(self.accepting, (list, tuple, set, frozenset)):
            kind = type(self.accepting).__name__
            raise TypeError(f"accepting must be a set or a list of states, got {kind}")
        for state in self.accepting:
            check_int("accepting", state, at_most=n - 1)
        for moves in self.transitions:
            for state in moves.values():
                check_int("transitions", state, at_most=n - 1)
        transitions, accepting = _trimmed(self.transitions, self.accepting)
        object.__setattr__(self, "transitions", transitions)
        object.__setattr__(self, "accepting", accepting)

    @classmethod
    def of_strings(cls, strings: Iterable[str] | Iterable[bytes]) -> "Automaton":
        """Return the automaton of a list of valid strings, all str or all bytes.

        Equal endings share their states. Raises a ValueError for an empty list, and a TypeError for
        anything that is not a list of strings. Cost: O(n) for n symbols in all.
        """
        strings = _checked(strings)
        transitions: list[dict[Any, int]] = [{}]
        accepting = set()
        for string in strings:
            state = 0
            for symbol in string:
                if symbol not in transitions[state]:
                    transitions[state][symbol] = len(transitions)
                    transitions.append({})
                state = transitions[state][symbol]
            accepting.add(state)
        # a state has a smaller number than those after it: from the last on, equal ones become one
        same: list[int] = [0] * len(transitions)
        known: dict[Any, int] = {}
        for state in reversed(range(len(transitions))):
            moves = {symbol: same[after] for symbol, after in transitions[state].items()}
            transitions[state] = moves
            same[state] = known.setdefault((state in accepting, frozenset(moves.items())), state)
        return cls(transitions, accepting)

    @classmethod
    def of_pattern(cls, pattern: str | bytes) -> "Automaton":
        r"""Return the automaton of a regular expression that a valid string matches as a whole.

        Parameters
        ----------
        pattern : str or bytes
            A pattern in the syntax of Python's `re`, as far as it is regular: characters, ``.``,
            classes such as ``[a-z]`` and ``[^,;]``, ``\d``, ``\w`` and ``\s`` (ASCII only),
            ``\n``, ``\t``, groups, ``|``, ``*``, ``+``, ``?``, ``{3}``, ``{2,}`` and ``{2,5}``,
            which may be lazy. A pattern of bytes gives an automaton of bytes, for the tokens of a
            byte-pair encoding. ``.`` (any symbol but a line break) and ``[^…]`` range over all
            bytes or, in a str, over the printable ASCII characters, tab, line break and the
            characters of the pattern. In bytes, a character beyond ASCII is repeated as a whole,
            although it has several bytes. It cannot stand between ``[`` and ``]``, which choose
            one byte, so write ``(é|ü)``.

        Raises
        ------
        TypeError, ValueError
            If `pattern` is neither str nor bytes, cannot be read, matches nothing, or would take
            more than 10 million steps.

        Notes
        -----
        The method is Glushkov's construction, followed by the subset construction. ``x{m,n}`` is n
        copies of x in a row, each entered from the one before, so a repetition of one symbol has
        n + 1 states. In general there can be 2^n states for n symbols in the pattern, as in all
        automata of ``(a|b)*a(a|b){n}``, but patterns of texts rarely need so many.
        """
        symbols, follow, last, is_empty_valid = positions_of(pattern)
        classes = _classes(symbols)
        start, steps = frozenset([-1]), 0
        numbers, states, transitions = {start: 0}, [start], []
        for state in states:  # grows while it is read
            after = set().union(*(follow[position] for position in state))
            steps += len(state) + len(after)
            found: dict[Any, int] = {}
            for some in classes:
                name = after & some.positions
                steps += 1
                if not name:
                    continue
                name = frozenset(name)
                if name not in numbers:
                    numbers[name] = len(states)
                    states.append(name)
                found |= dict.fromkeys(some.symbols, numbers[name])
            steps += len(found)
            if steps > MOST_STEPS:
                raise ValueError(
                    f"pattern must have an automaton that is made in {MOST_STEPS:,} steps, got more"
                    f" with {len(states):,} states: repeat less, or nest fewer repetitions"
                )
            transitions.append(found)
        ends = [i for name, i in numbers.items() if name & last or (i == 0 and is_empty_valid)]
        return cls(transitions, ends)

    def run(self, string: Iterable[Hashable], state: int = 0) -> int | None:
        """Return the state after reading `string` from `state`, or None if it cannot be read.

        Symbols are the characters of a str or the ints of bytes. An unknown state raises a
        ValueError.
        """
        check_int("state", state, at_most=len(self.transitions) - 1)
        for symbol in string:
            if symbol not in self.transitions[state]:
                return None
            state = self.transitions[state][symbol]
        return state

    def accepts(self, string: Iterable[Hashable]) -> bool:
        """Say whether `string` is valid."""
        return self.run(string) in self.accepting

    def over(self, alphabet: Collection[Hashable]) -> "Automaton":
        """Return the automaton of the valid strings of these symbols; ValueError if none exist."""
        kept = [
            {symbol: after for symbol, after in moves.items() if symbol in alphabet}
            for moves in self.transitions
        ]
        return Automaton(kept, self.accepting)


class _Class(NamedTuple):
    """Symbols that no position tells apart, and the positions that read them."""

    symbols: list[Hashable]
    positions: set[int]


def _classes(symbols):
    """Return the classes of the symbols of all positions."""
    readers: dict[frozenset, set[int]] = {}  # of each set of symbols that a position reads
    for position, some in enumerate(symbols):
        readers.setdefault(some, set()).add(position)
    signs: dict[Any, list[int]] = {}
    for k, some in enumerate(readers):
        for symbol in some:
            signs.setdefault(symbol, []).append(k)
    alike: dict[tuple[int, ...], list[Hashable]] = {}
    for symbol, sets in signs.items():
        alike.setdefault(tuple(sets), []).append(symbol)
    every = list(readers.values())
    return [_Class(some, set().union(*(every[k] for k in sets))) for sets, some in alike.items()]


def _checked(strings):
    """Return the list of all strings, of one kind, or raise."""
    kind = type(strings).__name__
    several = f"strings must be several str or several bytes, got {kind}"
    if isinstance(strings, (str, bytes)):
        raise TypeError(several)
    try:
        walk = iter(strings)  # an array without axes has the method and nothing to walk over
    except TypeError:
        raise TypeError(several) from None
    strings = list(walk)
    if not strings:
        raise ValueError("strings must be at least one, got none")
    first = type(strings[0])
    if first not in (str, bytes):
        raise TypeError(f"strings[0] must be str or bytes, got {first.__name__}")
    for i, string in enumerate(strings):
        if not isinstance(string, first):
            raise TypeError(f"strings[{i}] must be {first.__name__}, got {type(string).__name__}")
    return strings


def _trimmed(transitions, accepting):
    """Return the states that are reached from 0 and reach an accepting one, or raise."""
    before: list[set[int]] = [set() for _ in transitions]
    for state, moves in enumerate(transitions):
        for after in moves.values():
            before[after].add(state)
    alive = _reached(accepting, before)
    reached = _reached([0] if 0 in alive else [], [moves.values() for moves in transitions])
    kept = sorted(set(alive) & set(reached))
    if not kept:
        raise ValueError(
            "transitions must lead from state 0 to one of accepting, so that a string is valid"
        )
    numbers = {state: i for i, state in enumerate(kept)}
    moved = tuple(
        {x: numbers[after] for x, after in transitions[state].items() if after in numbers}
        for state in kept
    )
    return moved, frozenset(numbers[state] for state in accepting if state in numbers)


def _reached(states, after):
    found = set(states)
    left = list(found)
    while left:
        new = set(after[left.pop()]) - found
        found |= new
        left += new
    return found
