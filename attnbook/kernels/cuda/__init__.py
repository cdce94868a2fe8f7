"""The CUDA C++ of the rungs *cupy_naive* and *cupy_tiled*, and how it sees arrays."""
