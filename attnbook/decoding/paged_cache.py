"""A KV cache in pages, which equal beginnings share."""

from typing import Annotated, Any

import numpy as np
from array_api_compat import device

from attnbook.arrays.arguments import check_array, check_floats, check_int
from attnbook.arrays.array import Array, array_namespace
from attnbook.decoding.kv_cache import KVCache, gather
from attnbook.kernels import REFERENCE, Impl
from attnbook.kernels import attention as attend
from attnbook.kernels.paging import PAGED, gathered, paged_attention

Pair = tuple[Array, Array]


class Pool:
    """The pages of all caches that share them: page p of every layer belongs to the same tokens."""

    def __init__(self, size: int, max_pages: int | None):
        self.size, self.max_pages = size, max_pages
        self.users = np.zeros(0, np.int64)  # of each page: sequences whose table lists it
        self.layers: dict[int, Pair] = {}  # (pages, h_kv, size, d)

    @property
    def n_used(self) -> int:
        """The number of pages that at least one sequence lists."""
        return int(np.count_nonzero(self.users))

    def take(self, n: int) -> np.ndarray:
        """Return n free pages, each with one user, or raise and change nothing."""
        free = np.flatnonzero(self.users == 0)
        missing = n - len(free)
        if missing > 0:
            total = len(self.users) + missing
            if self.max_pages is not None and total > self.max_pages:
                raise ValueError(
                    f"max_pages must be at least {total} to hold the new tokens, got "
                    f"{self.max_pages}: free or truncate a cache that shares the pages"
                )
            total = max(total, 2 * len(self.users))
            total = total if self.max_pages is None else min(total, self.max_pages)
            free = np.concatenate([free, np.arange(len(self.users), total)])
            self.users = np.concatenate([self.users, np.zeros(total - len(self.users), np.int64)])
            for layer, pair in self.layers.items():
                self.layers[layer] = tuple(_grown(x, total) for x in pair)
        self.users[free[:n]] = 1
        return free[:n]

    def add_users(self, pages: np.ndarray, change: int) -> None:
        """Count `change` more users of each page, once for each time that it is listed."""
        np.add.at(self.users, pages.reshape(-1), change)

    def own(self, pages: np.ndarray) -> np.ndarray:
        """Return pages with the same content as `pages`, none of which has another user."""
        shared = [i for i, page in enumerate(pages) if self._is_shared(page, pages[:i])]
        if not shared:
            return pages
        copies, new = self.take(len(shared)), pages.copy()
        for i, copy in zip(shared, copies, strict=True):
            for pair in self.layers.values():
                for x in pair:
                    x[int(copy), ...] = x[int(pages[i]), ...]
            new[i] = copy
        self.add_users(pages[shared], -1)
        return new

    def _is_shared(self, page, before):
        """Say whether a page has a user besides this one and those that get a copy before it."""
        return self.users[page] - np.count_nonzero(before == page) > 1


class PagedCache(KVCache):
    """A `KVCache` whose keys and values lie in pages, which several sequences may share.

    The **block table** says where: it lists the pages of each sequence, as `paged_attention` reads
    them. Pages may lie anywhere, so a sequence leaves less than one page empty, and a freed page
    serves any other sequence. `fork` makes a second cache that begins with the same tokens and
    lists the same pages. The first of the two that writes into a shared page gets its own copy of
    the page (**copy on write**). In this way many texts share one prompt, and beams share their
    beginnings.

    Pass one as ``cache=`` to any decoding function. All sequences of a cache have one length. Texts
    of different lengths have caches of their own, which share one pool of pages; call `free` when a
    text has ended, since a cache that is merely forgotten keeps its pages.

    Parameters
    ----------
    size : int
        The number of tokens per page, at least 1.
    max_pages : int, optional
        The most pages that the pool may have. Without it, the pool grows as needed.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above. When all `max_pages` pages are in use, appending raises a
        ValueError.

    Notes
    -----
    Keys have shape (..., h_kv, m, d_k), and the axes before h_kv are those of the sequences. Layers
    that keep a state work as in a `KVCache`, and so do `truncate` and `reorder`, which count users
    of pages and copy none.

    A step of one token without mask and bias reads the pages where they lie, by an `impl` of
    `paged_attention` other than the reference. All other passes gather the keys of a layer into a
    new array, as `keys` and `values` do.

    Cost: the pool at least doubles when it is full, so n tokens are copied O(n) times in all.

    References
    ----------
    Kwon et al. (2023), as of `paged_attention`; chapter `fast_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> cache = PagedCache(size=4)
    >>> keys, values = cache.append(0, np.ones((1, 2, 7, 5)), np.ones((1, 2, 7, 3)))
    >>> other = cache.fork()
    >>> cache.n_pages, other.n_pages
    (2, 2)
    >>> keys, values = other.append(0, np.zeros((1, 2, 3, 5)), np.zeros((1, 2, 3, 3)))
    >>> len(cache), len(other), cache.n_pages
    (7, 10, 4)
    >>> other.free()
    >>> cache.n_pages
    2
    """

    def __init__(self, size: int = 16, *, max_pages: int | None = None):
        super().__init__()  # whose arrays hold no tokens here: they say what fits a layer
        if max_pages is not None:
            max_pages = check_int("max_pages", max_pages, at_least=1)
        self._pool = Pool(check_int("size", size, at_least=1), max_pages)
        self._sequences: tuple[int, ...] | None = None
        self._table = np.zeros((0, 0), np.int64)

    @property
    def size(self) -> int:
        """The number of tokens per page."""
        return self._pool.size

    @property
    def n_pages(self) -> int:
        """The number of pages in use, by this cache and by all that share its pool."""
        return self._pool.n_used

    @property
    def nbytes(self) -> int:
        """The memory of the whole pool in bytes, including free pages, and of states."""
        arrays = [x for pair in self._pool.layers.values() for x in pair]
        bits = [array_namespace(x).finfo(x.dtype).bits * _count(x) for x in arrays]
        return super().nbytes + sum(bits) // 8

    @property
    def block_table(self) -> np.ndarray:
        """The pages of each sequence, a NumPy array of shape (sequences, pages), as a copy."""
        return self._table.copy()

    def key_pages(self, layer: int) -> Annotated[Array, "pages h_kv size d_k"]:
        """Return the pages of keys of a layer, of all sequences; you must not write into them."""
        return self._pages(layer)[0]

    def value_pages(self, layer: int) -> Annotated[Array, "pages h_kv size d_v"]:
        """Return the pages of values of a layer; you must not write into them."""
        return self._pages(layer)[1]

    def _pages(self, layer):
        self._check_held(layer)
        return self._pool.layers[layer]

    def _held(self, layer):
        self._check_held(layer)
        return self._gathered(layer, self._lengths[layer])

    def _gathered(self, layer, n):
        table, sequences = self._table[:, : -(-n // self.size)], self._sequences or ()
        found = []
        for pages in self._pool.layers[layer]:
            xp = array_namespace(pages)
            rows = gathered(pages, xp.asarray(table, device=device(pages)))[:, :, :n, :]
            found.append(xp.reshape(rows, (*sequences, *rows.shape[1:])))
        return tuple(found)

    def append(
        self, layer: int, keys: Annotated[Array, "... m d_k"], values: Annotated[Array, "... m d_v"]
    ) -> tuple[Annotated[Array, "... n d_k"], Annotated[Array, "... n d_v"]]:
        """Write the keys and values of m new tokens of a layer, and return those of all n so far.

        What is returned are copies. Arguments and errors are those of `KVCache.append`; in
        addition, a ValueError is raised if keys and values have no axis of heads, not the same
        heads, or not the sequences of the first layer, or if the pool has no page left.
        """
        n = self._write(layer, keys, values)
        return (keys, values) if n == keys.shape[-2] else self._gathered(layer, n)

    def _write(self, layer, keys, values):
        """Write m new tokens of a layer into pages, and return the number of its tokens."""
        self._check_new(layer, keys, values)
        if keys.ndim < 3:
            shape = tuple(keys.shape)
            raise ValueError(f"keys must have shape (..., h_kv, m, d_k), got {shape}")
        sequences = tuple(keys.shape[:-3])
        if self._sequences is not None and sequences != self._sequences:
            raise ValueError(f"keys must be of sequences {self._sequences}, got {sequences}")
        heads, m = keys.shape[-3:-1]
        if layer == len(self._rooms):
            self._start(layer, keys, values)
        flat = [
            array_namespace(x).reshape(x, (-1, heads, m, x.shape[-1])) if _count(x) else None
            for x in (keys, values)
        ]
        n = self._lengths[layer]
        self._make_room(n, n + m)
        pair = self._pool.layers[layer]
        for i, row in enumerate(self._table.tolist() if m else ()):
            for page in range(n // self.size, -(-(n + m) // self.size)):
                first = max(n, page * self.size)
                last = min(n + m, (page + 1) * self.size)
                slots = slice(first - page * self.size, last - page * self.size)
                for pages, x in zip(pair, flat, strict=True):
                    if x is not None:
                        pages[row[page], :, slots, :] = x[i, :, first - n : last - n, :]
        self._lengths[layer] = n + m
        return n + m

    def _start(self, layer, keys, values):
        """Begin a layer, whose pages the pool may have already, for another cache."""
        for name, x, pages in zip(
            ("keys", "values"), (keys, values), self._pool.layers.get(layer, ()), strict=False
        ):
            check_floats(**{"the pages of the pool": pages, name: x})
            got, expected = (x.shape[-3], x.shape[-1]), (pages.shape[1], pages.shape[-1])
            if got != expected:
                raise ValueError(
                    f"{name} must have {expected[0]} heads of width {expected[1]}, as the pages of "
                    f"the pool, got {got[0]} of width {got[1]}"
                )
        if self._sequences is None:
            self._sequences = tuple(keys.shape[:-3])
            self._table = np.zeros((int(np.prod(self._sequences)), 0), np.int64)
        self._rooms.append(tuple(_empty(x, (*x.shape[:-2], 0)) for x in (keys, values)))
        self._lengths.append(0)
        if layer not in self._pool.layers:
            shape = (len(self._pool.users), keys.shape[-3], self.size)
            self._pool.layers[layer] = (_empty(keys, shape), _empty(values, shape))

    def _make_room(self, n, total):
        """List pages for tokens n … total, which no other sequence lists."""
        pool, table = self._pool, self._table
        first, listed = n // self.size, table.shape[1]
        if total > n and first < listed:
            table, columns = table.copy(), slice(first, -(-total // self.size))
            written = table[:, columns]
            table[:, columns] = pool.own(written.reshape(-1)).reshape(written.shape)
            self._table = table
        more = -(-total // self.size) - listed
        if more > 0:
            new = pool.take(more * len(table)).reshape(len(table), more)
            self._table = np.concatenate([table, new], axis=1)

    def take_in(self, layer: int, heads: Pair, impl: Impl, weights: Any) -> tuple[Pair, Impl]:
        """Write new keys and values; return what the new tokens attend to, and who attends.

        Where the pages are read in place, this is a function that reads them, and no other keys
        than the new ones are returned.
        """
        is_plain = all(getattr(weights, name, None) is None for name in ("window", "sinks", "cap"))
        reads_pages = isinstance(impl, str) and impl in PAGED and impl != REFERENCE
        if not (is_plain and reads_pages and heads[0].shape[-2] == 1):
            return super().take_in(layer, heads, impl, weights)
        n = self._write(layer, *heads)

        def paged(query, key, value, mask, bias, scale, is_causal):
            if mask is not None or bias is not None:
                xp, (*sequences, h, m, d) = array_namespace(query), query.shape
                key, value = (x[..., None, :, :] for x in self._gathered(layer, n))
                group = h // key.shape[-4]
                asked = xp.reshape(query, (*sequences, key.shape[-4], group, m, d))
                mask, bias = (_grouped(x, key.shape[-4], group) for x in (mask, bias))
                output = attend(impl, asked, key, value, mask, bias, scale, is_causal)
                return xp.reshape(output, (*sequences, h, m, output.shape[-1]))
            return self._attend(layer, n, impl, query, scale)

        return heads, paged

    def _attend(self, layer, n, impl, query, scale):
        xp, where = array_namespace(query), device(query)
        table = xp.asarray(self._table, device=where)
        lengths = xp.full((len(self._table),), n, dtype=table.dtype, device=where)
        asked = xp.reshape(query, (len(self._table), *query.shape[-3:]))
        pair = self._pool.layers[layer]
        output = paged_attention(impl, asked, *pair, table, lengths, scale)
        return xp.reshape(output, (*query.shape[:-1], output.shape[-1]))

    def fork(self, n: int | None = None) -> "PagedCache":
        """Return a cache that begins with the first n tokens of this one and shares their pages.

        Without `n` it begins with all tokens. With 0 it is empty, and any number of sequences may
        enter it. Raises a TypeError or a ValueError if `n` is not an int from 0 to ``len(cache)``,
        and a ValueError if a layer keeps a state, unless all tokens are kept.
        """
        other = PagedCache(self.size)
        other._pool = self._pool
        n = len(self) if n is None else check_int("n", n)
        if n or not self._rooms:
            other._sequences, other._table = self._sequences, self._table
            other._rooms, other._lengths = list(self._rooms), list(self._lengths)
            other._with_state = set(self._with_state)
            self._pool.add_users(self._table, 1)
            try:
                other.truncate(n)
            except ValueError:
                other.free()
                raise
        return other

    def free(self) -> None:
        """Forget all tokens, so that pages without another user serve other sequences."""
        self._pool.add_users(self._table, -1)
        self._rooms, self._lengths, self._with_state = [], [], set()
        self._sequences, self._table = None, np.zeros((0, 0), np.int64)

    def truncate(self, n: int) -> None:
        """Cut every layer back to its first n tokens, as `KVCache.truncate` does."""
        super().truncate(n)
        pages = -(-n // self.size)
        self._pool.add_users(self._table[:, pages:], -1)
        self._table = self._table[:, :pages]

    def reorder(self, index: Annotated[Array, "batch m"]) -> None:
        """Reorder the sequences of every layer, as `KVCache.reorder` does, and copy no page."""
        check_array("index", index)
        shape, sequences = tuple(index.shape), self._sequences or ()
        if self._rooms and (len(sequences) != 2 or len(shape) != 2 or shape[0] != sequences[0]):
            batch = sequences[0] if sequences else 1
            raise ValueError(f"index must have shape ({batch}, m), got {shape}")
        for layer, held in enumerate(self._rooms):
            parts = [gather(x, index) for x in held]
            self._rooms[layer] = held._make(parts) if hasattr(held, "_make") else tuple(parts)
        if self._sequences is not None:
            (batch, m), old, n = self._sequences, self._table, self._table.shape[1]
            rows = np.asarray(
                [[int(index[b, i]) for i in range(shape[1])] for b in range(shape[0])], np.int64
            )
            rows = rows.reshape(shape)[:, :, None]
            chosen = np.take_along_axis(old.reshape(batch, m, n), rows, axis=1)
            self._sequences, self._table = shape, chosen.reshape(shape[0] * shape[1], n)
            self._pool.add_users(self._table, 1)
            self._pool.add_users(old, -1)


def _count(x):
    return int(np.prod(x.shape))


def _empty(like, shape):
    xp = array_namespace(like)
    return xp.empty((*shape, like.shape[-1]), dtype=like.dtype, device=device(like))


def _grown(x, total):
    larger = _empty(x, (total, *x.shape[1:-1]))
    larger[: x.shape[0], ...] = x
    return larger


def _grouped(x, heads, group):
    """Return a mask or a bias with the axes (heads, group) for that of all heads."""
    if x is None or x.ndim < 3:
        return x
    own = (heads, group) if x.shape[-3] == heads * group else (1, 1)
    return array_namespace(x).reshape(x, (*x.shape[:-3], *own, *x.shape[-2:]))
