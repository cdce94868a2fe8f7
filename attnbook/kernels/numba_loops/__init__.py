"""The loops of the rungs *numba* and *packed*, compiled by Numba."""
