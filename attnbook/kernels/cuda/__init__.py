"""The CUDA C++ of the rung *cupy_tiled*, and how it sees arrays."""
