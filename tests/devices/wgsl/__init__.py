"""A device that runs kernels of the WebGPU device one by one, without that device's runtime.

Every argument of a kernel is a buffer of its own, written before and read back after: what kernels
compute is tested apart from how programs are run.
"""
