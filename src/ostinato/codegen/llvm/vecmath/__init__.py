"""Elementary functions on lanes, written in our own IR for float32 and float64.

Every function here takes and returns :class:`~ostinato.codegen.llvm.lanes.Lane` of float32 or
float64 at any lane count, is correct over the whole range (zeros with their sign, subnormals,
infinities, NaN), and is within 2 ulp of the true value; ``tests/codegen/test_vecmath.py`` holds
the measurements. One algorithm serves both formats, with the coefficients of each.
"""
