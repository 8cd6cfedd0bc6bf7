"""The renderer of loop nests and size steps as CUDA C++."""
