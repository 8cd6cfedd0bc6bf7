"""Packed weights: blocks of a few bits per element that share scales, as GGUF files hold them.

- ``fields``: integers of a few bits, and their positions among the bytes of a block.
- ``formats``: the table of formats, by the names of ONNX ``DequantizePacked``.
- ``grids``, ``grid_formats``: formats whose codes are numbers of points in a table.
- ``decoding``: elements of any format, in float32.
- ``encoding``: blocks of elements, for the formats that have one obvious way to round.
"""
