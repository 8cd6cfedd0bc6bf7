"""Language models: files, graphs, text and generation."""
