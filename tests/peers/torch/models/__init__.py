"""Architectures of other libraries with tiny random weights, through :func:`ostinato.from_torch`.

``python -m tests.peers.torch.models`` compares all of them with PyTorch and writes ``results.txt``.
"""
