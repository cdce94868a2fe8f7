"""Kernels in Gluon, for NVIDIA's Hopper GPUs."""
