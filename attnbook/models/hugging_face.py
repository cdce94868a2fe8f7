"""Models of the Hugging Face Hub as weights of this package."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from attnbook.arrays.arguments import check_floats
from attnbook.arrays.array import Array, array_namespace
from attnbook.arrays.weights import some
from attnbook.models.architecture import Config, starred
from attnbook.models.bert_names import bert
from attnbook.models.deepseek import deepseek_v2, deepseek_v3
from attnbook.models.gpt2_names import gpt2
from attnbook.models.llama_family import gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3
from attnbook.models.mixtures import gpt_oss, mixtral, qwen3_moe
from attnbook.models.qwen3_next import qwen3_next
from attnbook.models.t5_names import t5

ARCHITECTURES = {
    **{"bert": bert, "gpt2": gpt2, "t5": t5},
    **{"llama": llama, "mistral": mistral, "mixtral": mixtral, "phi3": phi3},
    **{"qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe, "qwen3_next": qwen3_next},
    **{"gemma2": gemma2, "gemma3_text": gemma3, "gpt_oss": gpt_oss},
    **{"deepseek_v2": deepseek_v2, "deepseek_v3": deepseek_v3},
}
"""The architectures that `from_transformers` knows, by ``config["model_type"]``."""

ROW = re.compile(
    r"(?P<name>.+?)(?P<squeezed>\[:, 0\])?"
    r"(\[(?P<part>\d)/(?P<parts>[\w+]+)( per (?P<groups>\w+))?\])?(?P<transposed>\.T)?"
)
"""A name on the Hub, whether an axis of length 1 is dropped, the part of the tensor that is meant,
and whether it has shape (out, in)."""


def from_transformers(state_dict: Mapping[str, Array], config: Any) -> Any:
    r"""Return a model of the Hugging Face Hub as weights of this package.

    Parameters
    ----------
    state_dict : mapping of str to array
        The tensors by their names on the Hub, as returned by a model's ``state_dict()`` or
        ``safetensors.numpy.load_file``. All must have the same library, device and real floating
        dtype.
    config : dict, or config of `transformers`
        The content of config.json. Its ``model_type`` is one of the table below.

    Returns
    -------
    TransformerWeights, or BertWeights for BERT
        Weights for `transformer`, `greedy_decode`, `sample`, `nn.Transformer` and all others; those
        of BERT are for `models.bert`. Where the library allows, the arrays are views of the given
        ones.

    Raises
    ------
    TypeError
        If `state_dict` is not a mapping, `config` or one of its entries has the wrong type, or a
        tensor is not an array like the others.
    ValueError
        If the model type is unknown, an entry of `config` is missing or requires a computation that
        this package lacks, a tensor is missing, unknown or has a shape that contradicts `config`,
        two tensors that `config` ties differ, or the tensors are quantised.

    See Also
    --------
    from_folder : the same, from the folder of a downloaded model.

    Notes
    -----
    These models can be read. Below Llama, the table says what each of its relatives has besides:

    ==================  ============================================================================
    ``model_type``      what the weights hold
    ==================  ============================================================================
    ``"gpt2"``          learned positions, layer normalisation
    ``"bert"``          an encoder, post-norm; the pooler and the heads of pre-training are left out
    ``"t5"``            an encoder and a decoder, relative positions; in 1.0 ``output`` is the
                        embedding divided by √d_model
    ``"llama"``         Llama 1 to 3: RMSNorm, rotary positions, grouped heads, SwiGLU
    ``"mistral"``       a window in every layer
    ``"qwen2"``         Qwen2 and 2.5: biases of queries, keys and values, windows in upper layers
    ``"qwen3"``         normalised queries and keys
    ``"phi3"``          Phi-3, 3.5 and 4-mini: a part of the features rotates, LongRoPE
    ``"gemma2"``        two norms per sublayer, soft-capping, a window in every second layer
    ``"gemma3_text"``   normalised queries and keys, local layers with a rotation of their own
    ``"gpt_oss"``       learned sinks, a window in every second layer, a mixture of experts
    ``"mixtral"``       Mistral with a mixture of experts
    ``"qwen3_moe"``     Qwen3 with a mixture of experts
    ``"qwen3_next"``    three layers with a state and the gated delta rule, the fourth with gated
                        attention; a shared expert with a gate
    ``"deepseek_v2"``   latent attention, a mixture with shared experts; V2-Lite and V2.5, too
    ``"deepseek_v3"``   a sigmoid router with a correction; the layers that predict further tokens
                        are left out
    ==================  ============================================================================

    The positions of all relatives of Llama may be scaled: ``"linear"``, ``"dynamic"``,
    ``"llama3"``, ``"yarn"`` or ``"longrope"``.

    A matrix of this package has shape (in, out) and is multiplied as x W. On the Hub it has the
    following shape:

    ===================  ===========  ============================================================
    model                matrices     what else you need to know
    ===================  ===========  ============================================================
    GPT-2                (in, out)    ``c_attn`` holds W_Q, W_K and W_V side by side;
                                      ``lm_head``, if it is not tied, has shape (out, in)
    BERT                 (out, in)
    T5                   (out, in)    relative positions have one row per bucket, as here; ``wi_0``
                                      is W_gate, ``wi_1`` or ``wi`` W_1, ``wo`` W_2
    Llama and relatives  (out, in)    features half a head apart are rotated together, as here;
                                      ``gate_proj`` is W_gate, ``up_proj`` W_1, ``down_proj`` W_2
    Phi-3                (out, in)    ``qkv_proj`` and ``gate_up_proj`` hold several matrices
    Gemma                (out, in)    gains are stored minus 1
    Mixtral, Qwen3-MoE   (out, in)    experts have tensors of their own in published files, and
                                      are stacked in models of `transformers`; both can be read
    gpt-oss              (in, out)    only in the experts, whose W_gate and W_1 alternate in the
                                      columns of ``gate_up_proj``
    Qwen3-Next           (out, in)    gains are stored minus 1, but for that of a state;
                                      ``q_proj`` holds queries and gate of head after head, and
                                      ``in_proj_qkvz`` all that reads a token, group after group
    DeepSeek             (out, in)    as Mixtral; neighbouring features are rotated together;
                                      ``kv_b_proj`` holds W_UK and W_UV of head after head
    all: embeddings      (V, d)       one row per token or position, as here
    ===================  ===========  ============================================================

    Gains and biases have the same shape in both. The tables in `models.gpt2_names`,
    `models.bert_names`, `models.t5_names`, `models.llama_names`, `models.mixtures`,
    `models.qwen3_next` and `models.deepseek` list the names of every array in both. A tensor that
    is not in them is an error, unless they list it as harmless, such as buffers of masks and
    angles. Dropout is left out. Quantised files, such as gpt-oss in MXFP4 and DeepSeek-V3 in FP8,
    are refused; the same models in bfloat16 can be read.
    Cost: the cost of reading the tensors of `config`, and O(V d) to compare tied arrays if both are
    stored. Tensors that belong to no array are not read.

    References
    ----------
    Wolf et al. (2020), "Transformers: state-of-the-art natural language processing".

    Examples
    --------
    >>> import numpy as np
    >>> config = {"model_type": "gpt2", "vocab_size": 5, "n_positions": 7, "n_embd": 4}
    >>> config |= {"n_head": 2, "n_layer": 0}
    >>> state_dict = {"wte.weight": np.ones((5, 4)), "wpe.weight": np.ones((7, 4))}
    >>> state_dict |= {"ln_f.weight": np.ones(4), "ln_f.bias": np.zeros(4)}
    >>> weights = from_transformers(state_dict, config)
    >>> weights.positions, weights.target_positions.shape
    ('learned', (7, 4))
    """
    entries = Config(config)
    _check_plain(entries)
    architecture = ARCHITECTURES[entries.choice("model_type", ARCHITECTURES)](entries)
    stored = _by_bare_names(state_dict, architecture)
    rows = _rows(architecture, stored)
    tensors = _checked(state_dict, stored, architecture, rows)
    return _built(architecture, architecture.kind, "", rows, tensors)


def _check_plain(config):
    """Raise where the tensors are quantised, or layers have configs of their own."""
    quantized = config.part("quantization_config")
    if quantized.entries:
        raise ValueError(
            f"config['quantization_config'] must be None, because attnbook reads no quantised "
            f"tensors; load the model dequantised in transformers and save it, "
            f"got {quantized.known('quant_method')!r}"
        )
    config.only(per_layer_config=None)


def _by_bare_names(state_dict, architecture):
    """Return the name in `state_dict` of each tensor, by its name without prefix."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"state_dict must be a mapping of names to arrays, got {type(state_dict).__name__}"
        )
    stored = {}
    for name in state_dict:
        bare = architecture.bare(name)
        stored[name if bare in state_dict else bare] = name
    return stored


def _rows(architecture, stored):
    """Return, for each array here, the parts of its row, and the names of its tensors."""

    def n_missing(row):
        return sum(name not in stored for name in row["names"])

    rows = {}
    for ours, choices in architecture.rows().items():
        row = min((_row(architecture, choice) for choice in choices.split(" | ")), key=n_missing)
        if ours not in architecture.optional or n_missing(row) == 0:
            rows[ours] = row
    return rows


def _row(architecture, text):
    found = ROW.fullmatch(text)
    assert found is not None
    row = found.groupdict()
    name, numbers = row.pop("name"), range(architecture.sizes.get("E", 1) if "#" in text else 1)
    return {**row, "stacked": "#" in text, "names": [name.replace("#", str(i)) for i in numbers]}


def _checked(state_dict, stored, architecture, rows):
    """Return the tensors that `rows` name, which is all that is read, or raise.

    Each must be there, and of one home with the others; none may be unknown, or differ from what it
    is tied to.
    """
    needed = dict.fromkeys(name for row in rows.values() for name in row["names"])
    tied = {name: other for name, other in architecture.same.items() if name in stored}
    harmless = re.compile("|".join(architecture.harmless))
    missing = [name for name in needed if name not in stored]
    others = [name for name in stored if name not in needed and name not in tied]
    unknown = [name for name in others if not harmless.fullmatch(name)]
    if missing or unknown:
        raise ValueError(
            f"state_dict must have the {len(needed)} tensors that config describes, "
            f"got {some(missing)} missing and {some(unknown)} unknown"
        )
    tensors = {name: state_dict[stored[name]] for name in (*needed, *tied)}
    check_floats(**{_entry(name): x for name, x in tensors.items()})
    for name, other in tied.items():
        _check_same(name, tensors[name], other, tensors[other])
    return tensors


def _check_same(name, x, other_name, other):
    xp = array_namespace(x)
    if x is not other and not (x.shape == other.shape and bool(xp.all(x == other))):
        raise ValueError(
            f"{_entry(name)} must hold the numbers of {other_name!r}, since config ties them, "
            f"got others"
        )


def _built(architecture, kind, path, rows, tensors):
    """Return weights of the class `kind`, whose names begin with `path`."""
    plain = architecture.plain
    fields: dict[str, Any] = {}

    def part(name, path):
        kinds = kind.part_kinds[name]
        wanted = {row[len(path) :].split(".")[0] for row in rows if row.startswith(path)}
        fitting = (k for k in architecture.kinds if k in kinds and wanted <= {*k.field_names})
        return _built(architecture, next(fitting, kinds[0]), path, rows, tensors)

    for name in kind.field_names:
        ours = path + name
        if ours in plain or starred(ours) in plain:
            fields[name] = plain[ours if ours in plain else starred(ours)]
        elif name in kind.plain_names:
            fields |= {name: plain[name]} if name in plain else {}
        elif ours in rows:
            size = partial(architecture.size, path)
            x = _array(tensors, size, [size(x) for x in kind.axis_letters[name]], **rows[ours])
            factor, term = architecture.factors.get(ours), architecture.terms.get(name)
            x = x if factor is None else x * factor
            fields[name] = x if term is None else x + term
        elif ours in architecture.layers:
            layers = range(architecture.layers[ours])
            fields[name] = tuple(part(name, f"{ours}.{i}.") for i in layers)
        else:
            exists = any(row.startswith(f"{ours}.") for row in rows)
            fields[name] = part(name, f"{ours}.") if exists else None
    return kind(**fields)


def _array(tensors, size, shape, names, stacked, squeezed, part, parts, groups, transposed):
    """Return the array of this shape that a row of the names describes, or raise.

    `size` gives the length of an axis by its letter.
    """
    if stacked:
        row = {"part": part, "parts": parts, "groups": groups, "squeezed": squeezed}
        row["stacked"] = False
        one = partial(_array, tensors, size, shape[1:], **row, transposed=transposed)
        experts = [one(names=[name]) for name in names]
        return array_namespace(experts[0]).stack(experts)
    (name,), widths = names, [size(letters) for letters in parts.split("+")] if parts else []
    n_groups = size(groups) if groups else 1
    *leading, last = shape
    wanted = (*leading, n_groups * sum(widths) if widths else last)
    wanted = (*wanted[:-2], wanted[-1], wanted[-2]) if transposed else wanted
    wanted = (wanted[0], 1, wanted[1]) if squeezed else wanted
    x = tensors[name]
    if tuple(x.shape) != wanted:
        raise ValueError(
            f"{_entry(name)} must have shape {wanted} to match config, got {tuple(x.shape)}"
        )
    xp = array_namespace(x)
    x = x[:, 0, :] if squeezed else x
    x = xp.matrix_transpose(x) if transposed else x
    if not widths:
        return x
    first = sum(widths[: int(part)])
    x = xp.reshape(x, (*leading, n_groups, sum(widths))) if groups else x
    x = x[..., first : first + widths[int(part)]]
    return xp.reshape(x, tuple(shape)) if groups else x


def _entry(name):
    return f"state_dict[{name!r}]"
