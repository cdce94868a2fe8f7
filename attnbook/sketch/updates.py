"""Updates of a sketch. Keys and values are checked, hashed and put into the tables."""

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array
from attnbook.sketch.state import SketchState, widen_box


def update(state: SketchState, key: Array, value: Array) -> Array:
    """Add keys with their values, and return their rows. If it raises, nothing has changed."""
    check_update(state, key, value)
    return insert(state, key, value, state.engine.signatures(key, of_queries=False))


def check_update(state: SketchState, key: Array, value: Array) -> None:
    """Raise unless keys and values are finite and fit one another and the sketch."""
    check_floats(key=key, value=value)
    state.check_rows("key", key, "m, d", state.key)
    state.check_rows("value", value, "m, d_v", state.value)
    if key.shape[0] != value.shape[0]:
        raise ValueError(
            f"value must have shape ({key.shape[0]}, d_v) to match key, got {tuple(value.shape)}"
        )
    # a pass over a million keys takes as long as a third of their hashing
    hashed = state.engine.compiled
    for name, x in (("key", key), ("value", value)):
        if not (hashed and x is key) and not state.engine.all_finite(x):
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def insert(state: SketchState, key: Array, value: Array, signatures: Array) -> Array:
    """Add checked keys whose signatures are known, and return their rows."""
    index = state.index
    if index is None:
        index = state.engine.new_index(state.settings.seed)
    pairs = ((state.key, key), (state.value, value))
    rooms = [held.with_room(x) for held, x in pairs]
    rows = index.add(signatures)  # the last step that can fail
    state.index = index
    for (held, x), room in zip(pairs, rooms, strict=True):
        held.append(x, room)
    widen_box(state, value)
    return rows
