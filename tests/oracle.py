"""What the package must compute, in float64 loops over single numbers, written from the formulas.

Slow and plain on purpose: no array function of the package or of NumPy does any mathematics here.
"""

import math
from functools import partial

import numpy as np


def softmax_row(row):
    """Return exp(x) / Σ exp(x) of a list; zeros where every x is −∞, NaN where one is NaN or +∞."""
    row = [float(x) for x in row]
    if any(math.isnan(x) or x == math.inf for x in row):
        return [math.nan] * len(row)
    top = max(row, default=-math.inf)
    if top == -math.inf:
        return [0.0] * len(row)
    exponentials = [math.exp(x - top) for x in row]
    total = math.fsum(exponentials)
    return [e / total for e in exponentials]


def log_softmax_row(row):
    """Return x − log Σ exp(x) of a list, with the same conventions."""
    row = [float(x) for x in row]
    top = max(row, default=-math.inf)
    if any(math.isnan(x) or x == math.inf for x in row):
        return [math.nan] * len(row)
    if top == -math.inf:
        return row
    log_total = math.log(math.fsum(math.exp(x - top) for x in row))
    return [(x - top) - log_total for x in row]


def along(function, x, axis):
    """Apply `function` to every slice of `x` along `axis`."""
    x = np.moveaxis(np.asarray(x, dtype=np.float64), axis, -1)
    out = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        out[index] = function(x[index])
    return np.moveaxis(out, -1, axis)


def softmax(x, axis=-1):
    return along(softmax_row, x, axis)


def log_softmax(x, axis=-1):
    return along(log_softmax_row, x, axis)


def scores(query, key, mask=None, bias=None, scale=None, cap=None):
    """Return scale · q·k + bias, −∞ where the mask forbids, one pair at a time.

    With a cap c, s = scale · q·k is c · tanh(s / c) instead.
    """
    query, key = (np.asarray(x, dtype=np.float64) for x in (query, key))
    n_q, d_k = query.shape[-2:]
    n_k = key.shape[-2]
    scale = 1 / math.sqrt(d_k) if scale is None else float(scale)
    leading = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query = np.broadcast_to(query, (*leading, n_q, d_k))
    key = np.broadcast_to(key, (*leading, n_k, d_k))
    mask = np.broadcast_to(True if mask is None else mask, (*leading, n_q, n_k))
    bias = np.broadcast_to(0.0 if bias is None else bias, (*leading, n_q, n_k))
    out = np.full((*leading, n_q, n_k), -math.inf)
    for *lead, i, j in np.ndindex(out.shape):
        if mask[(*lead, i, j)]:
            products = (query[(*lead, i, a)] * key[(*lead, j, a)] for a in range(d_k))
            score = scale * math.fsum(products)
            score = score if cap is None else cap * math.tanh(score / cap)
            out[(*lead, i, j)] = score + bias[(*lead, i, j)]
    return out


def attention_weights(query, key, mask=None, bias=None, scale=None):
    return softmax(scores(query, key, mask, bias, scale))


def weighted_sum(weights, value):
    """Return Σ_j weights[i, j] · value[j, c] for every i and c."""
    weights, value = (np.asarray(x, dtype=np.float64) for x in (weights, value))
    n_q, n_k = weights.shape[-2:]
    d_v = value.shape[-1]
    leading = np.broadcast_shapes(weights.shape[:-2], value.shape[:-2])
    weights = np.broadcast_to(weights, (*leading, n_q, n_k))
    value = np.broadcast_to(value, (*leading, n_k, d_v))
    out = np.zeros((*leading, n_q, d_v))
    for *lead, i, c in np.ndindex(out.shape):
        products = (weights[(*lead, i, j)] * value[(*lead, j, c)] for j in range(n_k))
        out[(*lead, i, c)] = math.fsum(products)
    return out


def attention(query, key, value, mask=None, bias=None, scale=None):
    return weighted_sum(attention_weights(query, key, mask, bias, scale), value)


def project(x, matrix):
    """Return x @ matrix, one number at a time."""
    x, matrix = (np.asarray(a, dtype=np.float64) for a in (x, matrix))
    out = np.zeros((*x.shape[:-1], matrix.shape[1]))
    for *row, c in np.ndindex(out.shape):
        products = (x[(*row, a)] * matrix[a, c] for a in range(matrix.shape[0]))
        out[(*row, c)] = math.fsum(products)
    return out


def single_head_attention(query, key, value, W_Q, W_K, W_V, W_O=None, mask=None):
    """Return the output of the learned head and its weights."""
    q, k, v = project(query, W_Q), project(key, W_K), project(value, W_V)
    weights = attention_weights(q, k, mask)
    output = weighted_sum(weights, v)
    return (output if W_O is None else project(output, W_O)), weights


def as_it_is(x):
    return x


def multi_head_attention(
    query,
    key,
    value,
    W_Q,
    W_K,
    W_V,
    W_O,
    b_Q,
    b_K,
    b_V,
    b_O,
    n_heads,
    n_kv_heads,
    scale=None,
    mask=None,
    bias=None,
    rounded=as_it_is,
    turn=as_it_is,
    W_gate=None,
    sinks=None,
    q_norm=None,
    k_norm=None,
    cap=None,
    window=None,
):
    """Return the output of all heads and the weights of each, one head after the other.

    `rounded` is applied to each projection and to the joined heads: what is kept in the dtype of
    the inputs. `turn` is applied to the queries and the keys of each head. With sinks, the weight
    of the sink is the first of each row.
    """

    projected = ((query, W_Q, b_Q), (key, W_K, b_K), (value, W_V, b_V))
    q, k, v = (affine(*each, rounded) for each in projected)
    d_k, d_v = W_Q.shape[1] // n_heads, W_V.shape[1] // n_kv_heads
    leading = np.broadcast_shapes(q.shape[:-2], k.shape[:-2])
    shape = (*leading, n_heads, q.shape[-2], k.shape[-2])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, shape)
    if window is not None:
        mask = mask & mask_of(*shape[-2:], lambda place, j: place - window < j <= place)
    first = 0 if sinks is None else 1
    shares, outputs = np.zeros((*shape[:-1], first + shape[-1])), []
    for i in range(n_heads):
        j = math.floor(i * n_kv_heads / n_heads)  # the key and value head that head i reads
        of_query = q[..., [i * d_k + a for a in range(d_k)]]
        of_key = k[..., [j * d_k + a for a in range(d_k)]]
        of_value = v[..., [j * d_v + c for c in range(d_v)]]
        seen, added = mask[..., i, :, :], bias[..., i, :, :]
        of_query = of_query if q_norm is None else norm_of(of_query, q_norm)
        of_key = of_key if k_norm is None else norm_of(of_key, k_norm)
        each = scores(turn(of_query), turn(of_key), seen, added, scale, cap)
        if sinks is not None:
            each = np.concatenate([np.full((*each.shape[:-1], 1), sinks[i]), each], axis=-1)
        shares[..., i, :, :] = softmax(each)
        outputs.append(weighted_sum(shares[..., i, :, first:], of_value))
    joined = np.zeros((*outputs[0].shape[:-1], n_heads * d_v))
    for i, output in enumerate(outputs):
        for c in range(d_v):
            joined[..., i * d_v + c] = output[..., c]
    joined = rounded(joined)
    if W_gate is not None:
        joined = rounded(joined * along(logistic, rounded(project(query, W_gate)), -1))
    return (joined if W_O is None else affine(joined, W_O, b_O, rounded)), shares


def logistic(row):
    """Return 1 / (1 + e^-x) of a list, by the exponential that cannot overflow."""
    small = [math.exp(-abs(x)) for x in row]
    return [(1 if x > 0 else s) / (1 + s) for x, s in zip(row, small, strict=True)]


def mask_of(n_q, n_k, sees):
    """Return the mask of a rule `sees(place, j)`; the last query stands beside the last key."""
    out = np.zeros((n_q, n_k), dtype=bool)
    for i in range(n_q):
        for j in range(n_k):
            out[i, j] = sees(i + n_k - n_q, j)
    return out


# The transformer. A `w` is a dataclass of weights; only its attributes are read.


def layer_norm_row(row, gain, bias, epsilon):
    """Return (x − mean) / √(variance + ε) · gain + bias of a list."""
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    root = math.sqrt(variance + epsilon)
    return [(x - mean) / root * g + b for x, g, b in zip(row, gain, bias, strict=True)]


def layer_norm(x, gain=None, bias=None, epsilon=1e-5):
    d = np.shape(x)[-1]
    gain = [1.0] * d if gain is None else np.asarray(gain, dtype=np.float64).tolist()
    bias = [0.0] * d if bias is None else np.asarray(bias, dtype=np.float64).tolist()
    return along(lambda row: layer_norm_row(row.tolist(), gain, bias, epsilon), x, -1)


def rms_norm(x, gain=None, epsilon=1e-5):
    """Return x / √(mean of x² + ε) · gain, row by row."""
    gain = [1.0] * np.shape(x)[-1] if gain is None else np.asarray(gain, dtype=np.float64).tolist()

    def normalized(row):
        root = math.sqrt(math.fsum(t * t for t in row.tolist()) / len(row) + epsilon)
        return [t / root * g for t, g in zip(row.tolist(), gain, strict=True)]

    return along(normalized, x, -1)


def norm_of(x, w):
    if not hasattr(w, "bias"):
        return rms_norm(x, w.gain, w.epsilon)
    return layer_norm(x, w.gain, w.bias, w.epsilon)


def relu(x):
    return along(lambda row: [number if number > 0 else 0.0 for number in row], x, -1)


def gelu(x):
    """Return x times the probability that a normal number is below x."""
    return along(lambda row: [t * math.erfc(-t / math.sqrt(2)) / 2 for t in row], x, -1)


def gelu_tanh(x):
    root = math.sqrt(2 / math.pi)
    return along(
        lambda row: [t / 2 * (1 + math.tanh(root * (t + 0.044715 * t**3))) for t in row], x, -1
    )


def silu(x):
    """Return x / (1 + e^-x), by the exponential that cannot overflow."""

    def one(t):
        small = math.exp(-abs(t))
        return t / (1 + small) if t > 0 else t * small / (1 + small)

    return along(lambda row: [one(t) for t in row.tolist()], x, -1)


def affine(x, matrix, bias, rounded=as_it_is):
    projected = rounded(project(x, matrix))
    return projected if bias is None else rounded(projected + np.asarray(bias))


def feed_forward(x, w, rounded=as_it_is):
    hidden = affine(x, w.W_1, w.b_1, rounded)
    activate = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}[w.activation]
    if hasattr(w, "W_gate"):
        gate = rounded(activate(affine(x, w.W_gate, w.b_gate, rounded)))
        hidden = rounded(gate * hidden)
    else:
        hidden = rounded(activate(hidden))
    return affine(hidden, w.W_2, w.b_2, rounded)


def angle(position, pair, d, base=10000.0):
    return position / base ** (2 * pair / d)


def columns_of(pair, d, interleaved):
    return (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + d // 2)


def sinusoidal(n, d, start=0, interleaved=False, base=10000.0):
    """Return the sine and cosine of every position and pair, one at a time."""
    out = np.zeros((n, d))
    for p in range(n):
        for i in range(d // 2):
            first, second = columns_of(i, d, interleaved)
            out[p, first] = math.sin(angle(start + p, i, d, base))
            out[p, second] = math.cos(angle(start + p, i, d, base))
    return out


def rotary(x, start=0, interleaved=False, base=10000.0):
    """Multiply each pair of features, as a complex number, by exp(i · angle)."""
    x = np.asarray(x, dtype=np.float64)
    *leading, n, d = x.shape
    out = np.zeros(x.shape)
    for *lead, p in np.ndindex(*leading, n):
        for i in range(d // 2):
            a, b = columns_of(i, d, interleaved)
            turned = complex(x[(*lead, p, a)], x[(*lead, p, b)])
            turned *= complex(
                math.cos(angle(start + p, i, d, base)), math.sin(angle(start + p, i, d, base))
            )
            out[(*lead, p, a)], out[(*lead, p, b)] = turned.real, turned.imag
    return out


def heads_of(query, key, w, mask=None, turn=as_it_is, bias=None):
    """Return output and weights of `multi_head_attention` with the arrays of `w`."""
    return multi_head_attention(
        *(query, key, key), **vars(w), **{"mask": mask, "turn": turn, "bias": bias}
    )


def sublayer(x, norm, order, function, after=None):
    """Return the residual sum in the given order, and what else the function returned."""
    y, other = function(norm_of(x, norm) if order == "pre" else x)
    y = y if after is None else norm_of(y, after)
    return (x + y if order == "pre" else norm_of(x + y, norm)), other


def encoder_layer(x, w, mask=None, turn=as_it_is, bias=None):
    return decoder_layer(x, None, w, mask, turn=turn, bias=bias)[:2]


def encoder(x, w, mask=None, turn=as_it_is, bias=None):
    return decoder(x, None, w, mask, turn=turn, bias=bias)[:2]


def decoder_layer(x, memory, w, mask=None, memory_mask=None, turn=as_it_is, bias=None):
    """Return what a layer computes; that of an encoder has no cross-attention."""
    cross, own = None, getattr(w, "rotary", None)
    if own is not None:
        turn = partial(rotary, interleaved=own.interleaved, base=own.base)
    x, shares = sublayer(
        *(x, w.self_attention_norm, w.norm),
        lambda y: heads_of(y, y, w.self_attention, mask, turn, bias),
        getattr(w, "self_attention_post_norm", None),
    )
    if getattr(w, "cross_attention", None) is not None:
        x, cross = sublayer(
            *(x, w.cross_attention_norm, w.norm),
            lambda y: heads_of(y, memory, w.cross_attention, memory_mask),
        )
    x, _ = sublayer(
        *(x, w.feed_forward_norm, w.norm),
        lambda y: (feed_forward(y, w.feed_forward), None),
        getattr(w, "feed_forward_post_norm", None),
    )
    return x, shares, cross


def decoder(x, memory, w, mask=None, memory_mask=None, turn=as_it_is, bias=None):
    own, crossed = [], []
    for layer in w.layers:
        x, shares, cross = decoder_layer(x, memory, layer, mask, memory_mask, turn, bias)
        own.append(shares)
        crossed.append(cross)
    return (x if w.final_norm is None else norm_of(x, w.final_norm)), own, crossed


def embed(ids, table, scale=True):
    """Return one row of the table after the other."""
    table = np.asarray(table, dtype=np.float64)
    out = np.zeros((*np.shape(ids), table.shape[1]))
    for index in np.ndindex(np.shape(ids)):
        for j in range(table.shape[1]):
            factor = math.sqrt(table.shape[1]) if scale else 1.0
            out[index][j] = table[int(np.asarray(ids)[index]), j] * factor
    return out


def placed_tokens(ids, table, learned, w):
    """Return the embedding of tokens with their positions, from the first one on."""
    x = embed(ids, table, w.scale_embeddings)
    n, d = x.shape[-2:]
    if w.positions == "learned":
        return x + np.asarray(learned)[:n]
    if w.positions in ("sinusoidal", "interleaved"):
        return x + sinusoidal(n, d, interleaved=w.positions == "interleaved")
    return x


def transformer(
    source, target, w, source_mask=None, target_mask=None, memory_mask=None, is_causal=True
):
    """Return the logits of every target token."""
    turn = rotary if w.positions == "rotary" else as_it_is
    memory = None
    if w.encoder is not None:
        table = w.target_embedding if w.source_embedding is None else w.source_embedding
        x = placed_tokens(source, table, w.source_positions, w)
        memory, _ = encoder(x, w.encoder, source_mask, turn)
    if is_causal:
        n = np.shape(target)[-1]
        causal = mask_of(n, n, lambda place, j: j <= place)
        target_mask = causal if target_mask is None else causal & target_mask
    x = placed_tokens(target, w.target_embedding, w.target_positions, w)
    y, *_ = decoder(x, memory, w.decoder, target_mask, memory_mask, turn)
    logits = project(y, np.asarray(w.target_embedding).T if w.output is None else w.output)
    logits = logits if w.b_out is None else logits + np.asarray(w.b_out)
    cap = w.logit_cap
    return (
        logits
        if cap is None
        else along(lambda row: [cap * math.tanh(x / cap) for x in row], logits, -1)
    )


def cross_entropy(logits, targets, mask=None, label_smoothing=0.0):
    """Return the mean of −Σ_j q_j log p_j, where q is the smoothed one-hot row of the target."""
    total, count = [], 0
    log_p = log_softmax(logits)
    n_known = log_p.shape[-1]
    for index in np.ndindex(log_p.shape[:-1]):
        if mask is not None and not mask[index]:
            continue
        count += 1
        for j in range(n_known):
            q = label_smoothing / n_known + (1 - label_smoothing) * (targets[index] == j)
            total.append(-q * log_p[(*index, j)] if q else 0.0)
    return math.fsum(total) / count if count else 0.0
