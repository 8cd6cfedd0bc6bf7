"""Kernels of the WebGPU device as WGSL."""
