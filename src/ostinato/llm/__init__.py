"""Language models: from a folder or a GGUF file to tokens."""
