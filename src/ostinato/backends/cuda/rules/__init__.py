"""The CUDA device's rules: matmuls, attention, recurrence, top-k, selection."""
