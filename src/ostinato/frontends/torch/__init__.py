"""The PyTorch front end: :func:`from_torch`."""
