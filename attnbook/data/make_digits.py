"""Write `digits.npz` from scikit-learn's copy of the UCI digits.

Run ``python -m attnbook.data.make_digits``. Only whoever remakes the file needs scikit-learn.
"""

import argparse
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def pack(**arrays: np.ndarray) -> bytes:
    """Return `arrays` as an .npz file whose bytes depend on nothing but them."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            # np.savez stamps each member with the time of writing; this date is always the same
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3  # otherwise Windows writes another byte than Linux
            member.external_attr = 0o644 << 16
            body = io.BytesIO()
            np.lib.format.write_array(body, array, version=(1, 0), allow_pickle=False)
            archive.writestr(member, body.getvalue(), compresslevel=9)
    return file.getvalue()


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
    parser = argparse.ArgumentParser(prog="python -m attnbook.data.make_digits")
    parser.add_argument("--output", type=Path, default=HERE / "digits.npz", help="file to write")
    output = parser.parse_args(arguments).output
    size = output.write_bytes(pack(**from_scikit_learn()))
    print(f"wrote {output} ({size} bytes)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
