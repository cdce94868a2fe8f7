"""The compilers of the kernels: Numba on the CPU, NVIDIA's for CUDA C++ on the GPU."""
