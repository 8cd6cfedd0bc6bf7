"""Elementary functions on lanes, written in our own IR for float32 and float64.

Every function here takes and returns :class:`~ostinato.backends.cpu.llvm.lanes.Lane` of float32 or
float64 at any lane count, is correct over the whole range (zeros with their sign, subnormals,
infinities, NaN), and is within 2 ulp of the true value, but for tanh (2.6) and the float64 tan
(2.8) at isolated points; ``tests/backends/cpu/llvm/test_vecmath.py`` holds the measurements. The
bits of a result depend neither on the lane count nor on the other lanes. One algorithm serves both
formats, with the coefficients of each.
"""
