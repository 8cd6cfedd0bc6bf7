"""Reading of ``.pt2`` files, as ``torch.export.save`` writes them, without PyTorch."""
