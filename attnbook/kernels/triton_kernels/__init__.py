"""The kernels of the rung *triton*."""
