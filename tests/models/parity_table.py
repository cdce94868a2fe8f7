"""Print how far each architecture is from `transformers`.

Models are small and random, and both sides compute the logits in float32. Run it by

    PYTHONPATH=tests/models python tests/models/parity_table.py
"""

import numpy as np
from tiny_decoders import DECODERS
from tiny_models import tokens, torch, weights_of, written

import attnbook
from attnbook.decoding import greedy_decode

ROWS = {
    **{"gpt2": "GPT-2", "llama 3.1": "Llama 3.1", "mistral": "Mistral", "mixtral": "Mixtral"},
    **{"phi3, long": "Phi-3", "qwen2, windows": "Qwen2", "qwen3": "Qwen3"},
    "qwen3-next": "Qwen3-Next",
    **{"qwen3 moe": "Qwen3-MoE", "gemma2": "Gemma 2", "gemma3, capped": "Gemma 3"},
    **{"gpt-oss, yarn": "gpt-oss", "deepseek 2": "DeepSeek-V2", "deepseek 3, yarn": "DeepSeek-V3"},
}


def row(name: str) -> tuple[float, int, int]:
    """Return the largest difference of logits, and how many of so many greedy tokens are equal."""
    ids, prompt = tokens(n=7), tokens(seed=1, n=3)
    model = DECODERS[name]().float()
    exact = model(torch.tensor(ids)).logits.detach().numpy()
    weights = weights_of(model).to(dtype="float32")
    far = 0.0
    for library in ("numpy", "torch"):
        own = attnbook.move(ids, library)
        got = attnbook.transformer(None, own, weights.to(library))
        far = max(far, np.abs(attnbook.move(got, "numpy") - exact).max())
    model, made = written(DECODERS[name], prompt, n=9)
    weights, same, n = weights_of(model), 0, 0
    for library in ("numpy", "torch"):
        for cache in (True, False):
            got = greedy_decode(
                weights.to(library),
                prompt=attnbook.move(prompt, library),
                max_length=9,
                stop=2,
                cache=cache,
            )
            got = attnbook.move(got.tokens, "numpy")
            same, n = same + (got == made[:, : got.shape[1]]).sum(), n + got.size
    return far, int(same), n


if __name__ == "__main__":
    print(f"{'architecture':14} {'logits':>9}  greedy tokens")
    for name, shown in ROWS.items():
        far, same, n = row(name)
        print(f"{shown:14} {far:9.1e}  {same} of {n} equal")
