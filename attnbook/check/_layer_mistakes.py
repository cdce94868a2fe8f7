"""What goes wrong in encoder and decoder layers alike: norms, residuals, sublayers, pieces.

Each is a name, what a teacher says, and the steps of the wrong layers.
"""

from attnbook.check import _layer_steps as s
from attnbook.check._layer_steps import Steps, only, swap

ORDER_MISTAKES: tuple[tuple[str, str, tuple[Steps, ...]], ...] = (
    (
        "pre-norm for post-norm",
        'You normalise before each sublayer, x + f(LN(x)), where weights.norm says "post": the '
        "sum is normalised, LN(x + f(x)).",
        (swap(order=lambda norm: "pre"),),
    ),
    (
        "post-norm for pre-norm",
        'You normalise the sum, LN(x + f(x)), where weights.norm says "pre": the sublayer gets '
        "the normalised input, x + f(LN(x)).",
        (swap(order=lambda norm: "post"),),
    ),
    (
        "norm orders mixed up",
        'Your two orders are exchanged: "pre" is x + f(LN(x)), "post" is LN(x + f(x)).',
        (swap(order=lambda norm: "post" if norm == "pre" else "pre"),),
    ),
)

RESIDUAL_MISTAKES: tuple[tuple[str, str, tuple[Steps, ...]], ...] = (
    (
        "no residuals",
        "You return what the sublayers make and never add what they were given. Each sublayer is "
        "added to its input: x + f(…). Without that, gradients vanish in a deep stack.",
        (swap(add=s.no_residual),),
    ),
    (
        "no residual around self-attention",
        "The residual around the self-attention is missing: add x to what it returns.",
        (swap(add=only(("self",), s.no_residual)),),
    ),
    (
        "no residual around the feed-forward network",
        "The residual around the feed-forward network is missing: add its input to what it "
        "returns.",
        (swap(add=only(("feed",), s.no_residual)),),
    ),
    (
        "residual from the normalised input",
        "With pre-norm you add the normalised x. The residual carries x itself, as it came: "
        "x + f(LN(x)), not LN(x) + f(LN(x)).",
        (
            swap(add=s.from_normalized),
            swap(add=only(("self",), s.from_normalized)),
            swap(add=only(("feed",), s.from_normalized)),
        ),
    ),
    (
        "norm inside the residual",
        "You normalise what the sublayer returns and add x afterwards, x + LN(f(x)). Post-norm "
        "normalises the sum, LN(x + f(x)); pre-norm the input, x + f(LN(x)).",
        (swap(add=s.norm_inside), swap(add=s.norm_inside_of_post)),
    ),
    (
        "normalised twice",
        "You normalise before each sublayer and after the sum too. One of the two: pre-norm "
        "before, post-norm after.",
        (
            swap(add=s.norm_on_both_sides),
            swap(add=s.norm_on_both_sides_of("pre")),
            swap(add=s.norm_on_both_sides_of("post")),
        ),
    ),
    (
        "no normalisation",
        "You never normalise. Each sublayer has a layer normalisation of its own.",
        (swap(add=s.no_norm),),
    ),
    (
        "self-attention not normalised",
        "The normalisation that belongs to the self-attention is missing.",
        (swap(add=only(("self",), s.no_norm)),),
    ),
    (
        "feed-forward network not normalised",
        "The normalisation that belongs to the feed-forward network is missing.",
        (swap(add=only(("feed",), s.no_norm)),),
    ),
    (
        "sublayers side by side",
        "Your feed-forward network reads the input of the layer. The sublayers follow each other: "
        "it reads what the sublayer before it, residual and all, has made.",
        (swap(add=only(("feed",), s.input_of_layer_read)),),
    ),
    (
        "residual from the input of the layer",
        "Around the feed-forward network you add the input of the whole layer, so what the others "
        "have added is lost. Add the input of the feed-forward network.",
        (swap(add=only(("feed",), s.input_of_layer_added)),),
    ),
)

PIECE_MISTAKES: tuple[tuple[str, str, tuple[Steps, ...]], ...] = (
    (
        "self-attention missing",
        "There is no self-attention in your layer: no token sees another.",
        (swap(arrange=s.without("self")),),
    ),
    (
        "feed-forward network missing",
        "Your layer ends before its last sublayer, the feed-forward network.",
        (swap(arrange=s.without("feed")),),
    ),
    (
        "no activation",
        "There is no ReLU between the matrices of the feed-forward network, so the two of them are "
        "one matrix.",
        (swap(feed=s.without_activation),),
    ),
    (
        "feed-forward network wrong",
        "Your feed-forward network is wrong in itself: the ReLU stands elsewhere, it is another "
        "function, or the biases are missing. check.feed_forward tells more.",
        tuple(swap(feed=feed) for feed in s.WRONG_FEEDS),
    ),
    (
        "layer normalisation wrong",
        "Your layer normalisation is wrong in itself: its variance divides by n − 1, as torch.std "
        "does, it runs over the sequence, or gain and bias are missing. check.layer_norm tells "
        "more.",
        tuple(swap(norm=norm) for norm in s.WRONG_NORMS),
    ),
    (
        "attention wrong",
        "Your multi-head attention is wrong in itself: one head instead of n_heads, another scale, "
        "no biases, no W_O, or heads joined by a bare reshape. check.multi_head_attention tells "
        "more.",
        tuple(swap(attend=attend) for attend in s.WRONG_ATTENTIONS),
    ),
)
