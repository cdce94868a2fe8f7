"""Answers that readers might hand in to the checks of linear attention, right and wrong.

A wrong answer stands under the name of the mistake that its check must find. All are in NumPy.
"""

import numpy as np

from attnbook import linear_attention as linear


def phi(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def in_a_loop(bug=""):
    """Return linear attention token by token, with one line that may be broken."""

    def attend(query, key, value):
        q, k = phi(query), phi(key)
        if bug == "features of one side alone":
            k = key
        if bug == "exponential features":
            q, k = np.exp(query), np.exp(key)
        state = np.zeros((*key.shape[:-2], key.shape[-1], value.shape[-1]), value.dtype)
        total, rows = np.zeros((*key.shape[:-2], key.shape[-1]), value.dtype), []
        everything = k.sum(axis=-2)
        for t in range(query.shape[-2]):
            now, before = k[..., t, :], total
            state = state + now[..., :, None] * value[..., t, None, :]
            total = total + now
            below = np.sum(q[..., t, :] * total, axis=-1)[..., None]
            if bug == "normaliser of all tokens":
                below = np.sum(q[..., t, :] * everything, axis=-1)[..., None]
            if bug == "normaliser of the last token":
                below = np.sum(q[..., -1, :] * everything, axis=-1)[..., None]
            if bug == "divided by the number of tokens":
                below = t + 1
            if bug == "own token not seen":
                below = np.sum(q[..., t, :] * before, axis=-1)[..., None]
            read = q[..., t, :] if bug != "own token not seen" else 0 * q[..., t, :]
            row = (read[..., None, :] @ state)[..., 0, :]
            if bug == "own token not seen":
                old = state - now[..., :, None] * value[..., t, None, :]
                row = (q[..., t, None, :] @ old)[..., 0, :]
            with np.errstate(all="ignore"):
                rows.append(row if bug == "no normaliser" else row / below)
        return np.stack(rows, axis=-2)

    return attend


def mean_of_all(query, key, value):
    weights = phi(query) @ phi(key).mT
    return weights @ value / weights.sum(-1, keepdims=True)


def steps_in_loops(bug=""):
    """Return a step of the gated delta rule, one number at a time."""

    def step(state, key, value, beta, decay):
        d_k, d_v = state.shape
        new = np.empty_like(state)
        if bug == "outer product transposed":
            return decay * state + beta * np.outer(value - decay * (key @ state), key)
        if bug == "state read without its transpose":
            return decay * state + beta * np.outer(key, value - decay * (state @ key))
        for j in range(d_v):
            asked = 1 if bug == "asked before the decay" else decay
            held = sum(asked * state[i, j] * key[i] for i in range(d_k))
            error = value[j] - (0 if bug == "nothing erased" else held)
            if bug == "beta on one side alone":
                error = value[j] - beta * held
            for i in range(d_k):
                factor = 1 if bug in ("beta forgotten", "beta on one side alone") else beta
                kept = state[i, j] if bug == "decay forgotten" else decay * state[i, j]
                if bug == "old state lost":
                    kept = 0
                new[i, j] = kept + factor * key[i] * error
        if bug == "decay forgotten":
            held = key @ state
            return state + beta * np.outer(key, value - held)
        return new

    return step


def by_the_matrix(state, key, value, beta, decay):
    """Multiply the old state by decay (I − beta k kᵀ)."""
    keep = decay * (np.eye(len(key), dtype=key.dtype) - beta * np.outer(key, key))
    return keep @ state + beta * np.outer(key, value)


def by_the_package(state, key, value, beta, decay):
    one = np.full(1, beta, dtype=key.dtype), np.log(np.full(1, decay, dtype=key.dtype))
    return linear.delta_rule(key[None], key[None], value[None], *one, state=state)[1]


def in_chunks(bug=""):
    """Return linear attention with decay in chunks, whose states are those of a recurrence."""

    def attend(query, key, value, log_decay, length):
        state = np.zeros((key.shape[1], value.shape[1]), value.dtype)
        output = np.empty_like(value)
        for start in range(0, len(query), length):
            first = state
            if bug == "chunks apart":
                first = 0 * state
            faded = 1.0
            inside = 0 * state
            for t in range(start, min(start + length, len(query))):
                decay = np.exp(log_decay[t])
                faded = faded * decay
                inside = decay * inside + np.outer(key[t], value[t])
                entering = 1.0 if bug == "state enters without decay" else faded
                output[t] = query[t] @ (entering * first + inside)
            left = 1.0 if bug == "state not faded" else faded
            state = left * state + inside
            if bug == "state replaced":
                state = inside
        return output, state

    return attend


def by_the_recurrence(query, key, value, log_decay, length):
    return linear.decayed_attention(query, key, value, log_decay)


def plain(query, key, value, log_decay, length):
    """Read without decay, all pairs at once."""
    return np.tril(query @ key.T) @ value, key.T @ value


def hidden_by_products(query, key, value, log_decay, length):
    """Read all tokens, later ones too, which grow."""
    since = np.cumsum(log_decay)
    gamma = np.exp(since[:, None] - since)
    right = linear.decayed_attention(query, key, value, log_decay)[1]
    blocks = np.arange(len(query)) // length
    seen = blocks[:, None] >= blocks
    return (np.where(seen, gamma, 0) * (query @ key.T)) @ value, right


def by_ratios(style=""):
    """Return linear attention with decay in chunks, from products of decays that it divides."""

    def attend(query, key, value, log_decay, length):
        state, rows = np.zeros((key.shape[1], value.shape[1]), value.dtype), []
        for start in range(0, len(query), length):
            q, k, v = (x[start : start + length] for x in (query, key, value))
            faded = np.cumprod(np.exp(log_decay[start : start + length]))
            pairs = np.tril((q * faded[:, None]) @ (k / faded[:, None]).T)
            if style == "gamma":
                pairs = np.tril(faded[:, None] / faded) * (q @ k.T)
            if style == "gamma times zeros":
                pairs = faded[:, None] / faded * np.tri(len(q)) * (q @ k.T)
            rows.append(faded[:, None] * (q @ state) + pairs @ v)
            state = faded[-1] * (state + (k / faded[:, None]).T @ v)
        return np.concatenate(rows).astype(value.dtype), state

    def quietly(*given):
        with np.errstate(all="ignore"):
            return attend(*given)

    return quietly


def with_overflow(query, key, value, log_decay, length):
    """Read all pairs at once, with zeros above the diagonal that meet infinity."""
    since = np.cumsum(log_decay)
    blocks = np.arange(len(query)) // length
    inside = blocks[:, None] == blocks
    with np.errstate(all="ignore"):
        gaps = since[:, None] - since
        gamma = np.where(inside, np.exp(gaps) * np.tri(len(query)), np.tril(np.exp(gaps)))
        right = linear.decayed_attention(query, key, value, log_decay)[1]
        output = (gamma * (query @ key.T)) @ value
    return output.astype(value.dtype), right


WRONG = {
    "linear_attention": {
        "no mask": mean_of_all,
        "no normaliser": in_a_loop("no normaliser"),
        "own token not seen": in_a_loop("own token not seen"),
        "normaliser of all tokens": in_a_loop("normaliser of all tokens"),
        "normaliser of the last token": in_a_loop("normaliser of the last token"),
        "divided by the number of tokens": in_a_loop("divided by the number of tokens"),
        "features of one side alone": in_a_loop("features of one side alone"),
        "exponential features": in_a_loop("exponential features"),
    },
    "delta_step": {
        "asked before the decay": steps_in_loops("asked before the decay"),
        "nothing erased": steps_in_loops("nothing erased"),
        "beta forgotten": steps_in_loops("beta forgotten"),
        "beta on one side alone": steps_in_loops("beta on one side alone"),
        "old state lost": steps_in_loops("old state lost"),
        "decay forgotten": steps_in_loops("decay forgotten"),
        "outer product transposed": steps_in_loops("outer product transposed"),
        "state read without its transpose": steps_in_loops("state read without its transpose"),
    },
    "chunkwise_attention": {
        "no decay": plain,
        "no mask": hidden_by_products,
        "chunks apart": in_chunks("chunks apart"),
        "state enters without decay": in_chunks("state enters without decay"),
        "state not faded": in_chunks("state not faded"),
        "state replaced": in_chunks("state replaced"),
        "ratios of products": by_ratios(),
        "overflow above the diagonal": with_overflow,
    },
}

DOUBLES = {
    "linear_attention": {
        "no mask; no normaliser": lambda q, k, v: phi(q) @ phi(k).mT @ v,
        "no features; no normaliser": lambda q, k, v: np.tril(q @ k.mT) @ v,
    },
    "delta_step": {
        "decay forgotten; beta forgotten": lambda S, k, v, beta, decay: S + np.outer(k, v - k @ S),
        "outer product transposed; state read without its transpose": lambda S, k, v, beta, decay: (
            decay * S + beta * np.outer(v - decay * S @ k, k)
        ),
        "decay forgotten; nothing erased": lambda S, k, v, beta, decay: S + beta * np.outer(k, v),
    },
    "chunkwise_attention": {
        "no decay; no mask": lambda q, k, v, g, C: (
            np.kron(np.eye(-(-len(q) // C)), np.ones((C, C)))[: len(q), : len(q)] * (q @ k.T) @ v
            + np.tril(
                np.kron(np.tri(-(-len(q) // C), k=-1), np.ones((C, C)))[: len(q), : len(q)]
                * (q @ k.T)
            )
            @ v,
            k.T @ v,
        ),
    },
}

RIGHT = {
    "linear_attention": [linear.kernel_attention, in_a_loop()],
    "delta_step": [by_the_package, by_the_matrix, steps_in_loops()],
    "chunkwise_attention": [by_the_recurrence, in_chunks()],
}
