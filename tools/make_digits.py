"""Write `attnbook/data/digits.npz` from scikit-learn's copy of the UCI digits.

Run ``python tools/make_digits.py``. Only whoever remakes the file needs scikit-learn.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

OUTPUT = Path(__file__).parents[1] / "attnbook/data/digits.npz"


def from_scikit_learn() -> dict[str, np.ndarray]:
    """Return scikit-learn's digits as images of 0 to 16 and labels, both uint8."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise SystemExit("scikit-learn is missing: pip install scikit-learn") from error
    source = load_digits()
    images = source.images.astype(np.uint8)
    labels = source.target.astype(np.uint8)
    if not (images == source.images).all():
        raise SystemExit("scikit-learn's pixels must be whole numbers from 0 to 16")
    return {"images": images, "labels": labels}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the file to write")
    output = parser.parse_args(arguments).output
    found = from_scikit_learn()
    with open(output, "wb") as file:
        np.savez_compressed(file, images=found["images"], labels=found["labels"])
    print(f"wrote {output} ({output.stat().st_size} bytes)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
