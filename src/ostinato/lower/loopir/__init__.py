"""The loop IR: scalar expressions, statements and loop nests over buffers."""
