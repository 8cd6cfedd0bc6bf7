"""CUDA kernels on the host: their text as C++, their threads as fibers, every access checked."""
