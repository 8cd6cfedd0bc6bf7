"""Devices of array frameworks: XLA, through JAX, and MLX run graphs by the rules of their ops."""
