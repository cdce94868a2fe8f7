"""One query after the other to a sketch on a GPU, by a CUDA graph that is captured once."""

from typing import Annotated, Any

from attnbook.arrays.array import Array
from attnbook.arrays.weights import check_part
from attnbook.compilers.cuda import HostFlag, import_cupy, name_of
from attnbook.sketch.attention import SketchAttention
from attnbook.sketch.cuda_hash import check_cupy


class QueryGraph:
    r"""`SketchAttention.attention_output` for single queries to a sketch that stays as it is.

    .. math:: \hat O = \sum_{i \in R} w_i v_i

    A single query is answered in some microseconds on the GPU, and most of a call goes to its
    preparation in Python. Here the launch is prepared once, with arrays that stay, and every query
    only copies itself into them and starts it.

    Parameters
    ----------
    sketch : SketchAttention
        With impl ``"cupy"``, a `SimHash` or `StableHash`, the tail ``"none"``, no heavy keys, and
        keys in it. If keys are added or removed, the next query builds the tables and captures
        the graph anew, which takes some hundred times as long as an answer.

    Attributes
    ----------
    query : CuPy array, shape (1, d)
        What `run` answers. Write into it, as with ``out=graph.query``, to save `ask` its copy.
    output : CuPy array, shape (1, d_v)
        The last answer. **The next one overwrites it.**

    Raises
    ------
    TypeError
        If `sketch` is no `SketchAttention`.
    ValueError
        If it is not as above.

    Notes
    -----
    A query costs a copy, a launch of the graph and a wait for the GPU. One thread at a time may
    ask, since the arrays are shared.

    References
    ----------
    CUDA C++ Programming Guide, "CUDA Graphs". Chapter `sketch`.

    Examples
    --------
    On a GPU, with keys and queries in CuPy arrays::

        sketch = SketchAttention(hash, impl="cupy")
        sketch.update(key)
        graph = QueryGraph(sketch)
        for i in range(len(query)):
            output = graph.ask(query[i : i + 1])
    """

    def __init__(self, sketch: SketchAttention):
        check_part("sketch", sketch, SketchAttention)
        state, settings = sketch.state, sketch.state.settings
        if settings.impl != "cupy":
            raise ValueError(f"sketch must have impl 'cupy', got {settings.impl!r}")
        if state.index is None:
            raise ValueError("sketch must have had keys, got one that is new")
        if state.engine.prepared(state) is None:
            raise ValueError(
                "sketch must have a SimHash or StableHash, tail 'none' and n_heavy 0, "
                f"got {type(settings.hash).__name__}, {settings.tail!r} and {settings.n_heavy}"
            )
        self._sketch, self._state = sketch, state
        self._cupy = cupy = import_cupy()
        key, value = state.key.held, state.value.held
        self.query = cupy.zeros((1, key.shape[1]), dtype=key.dtype)
        self.output = cupy.zeros((1, value.shape[1]), dtype=value.dtype)
        self._bad = HostFlag(cupy)
        self._prepared: Any = None  # what the graph was captured from, which it reads

    def ask(self, query: Annotated[Array, "1 d"]) -> Annotated[Array, "1 d_v"]:
        """Return `output` with the answer to a query, of the dtype of the keys.

        Raises TypeError or ValueError if it is no such CuPy array, and as `run`.
        """
        check_cupy("query", query, self._cupy, self.query.shape, (name_of(self.query.dtype),))
        self._cupy.copyto(self.query, query)
        return self.run()

    def run(self) -> Annotated[Array, "1 d_v"]:
        """Return `output` with the answer to what is in `query`.

        Raises ValueError if the query is not finite or too far out to be hashed, or if the sketch
        was initialized anew.
        """
        if self._sketch.state is not self._state:
            raise ValueError("sketch must be as it was captured, got one that was initialized anew")
        prepared = self._state.engine.prepared(self._state)
        if prepared is not self._prepared:
            self._capture(prepared)
        self._bad.clear()
        self._graph.launch()
        if self._bad.is_set():
            raise ValueError(
                "query must be finite and within 2**62 widths of 0 along every direction, "
                "got one that is not"
            )
        return self.output

    def _capture(self, prepared):
        launch = (self.query, self.output, self._bad)
        prepared.launch(*launch)  # compiles and loads the kernel, which a capture may not do
        with (stream := self._cupy.cuda.Stream(non_blocking=True)):
            stream.begin_capture()
            prepared.launch(*launch)
            self._graph = stream.end_capture()
        self._prepared = prepared
