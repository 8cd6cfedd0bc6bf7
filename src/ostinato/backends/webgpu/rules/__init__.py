"""The WebGPU device's rule table, and the kernels that its rules make."""
