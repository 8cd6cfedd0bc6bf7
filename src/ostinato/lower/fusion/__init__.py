"""Fusion: the nodes that share a kernel, and those that are computed where they are read."""
