"""The loops of the rung *packed*, compiled by Numba."""
