"""Models of Hugging Face folders as GGUF files.

- ``metadata``: configurations as metadata, and the parts that it can not express.
- ``tensors``: weights as the tensors of a file.
- ``vocabulary``: tokenizers and templates as metadata.
- ``folder``: a folder as all of them.
"""
