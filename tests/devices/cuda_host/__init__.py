"""The CUDA runtime on the host: a driver in this process whose kernels run in the emulator."""
