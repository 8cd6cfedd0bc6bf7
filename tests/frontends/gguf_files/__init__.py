"""GGUF files: what the ``gguf`` package writes, hostile ones, and mutated ones."""
