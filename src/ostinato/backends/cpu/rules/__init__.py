"""The CPU's rules: GEMM tiles over packed panels, attention, recurrence, top-k and experts."""
