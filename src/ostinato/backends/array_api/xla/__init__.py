"""XLA's devices: CPUs, GPUs and TPUs, through JAX."""
