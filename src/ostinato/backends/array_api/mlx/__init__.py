"""MLX's devices: the GPU of Apple's processors, and CPUs."""
