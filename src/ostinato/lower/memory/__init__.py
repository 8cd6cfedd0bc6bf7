"""Memory: layouts, sub-buffer views, and the buffer that each value is written to."""
