"""Families of language models, and the graphs that compute them.

- ``family``: the record of a family, and of a part of its layers.
- ``builder``: the pieces that graphs are made of: weights, norms, rotary embeddings, pools.
- ``rope``: frequencies of rotary embeddings.
- ``attention``, ``feed_forward``: parts of layers; ``parts``: all of them by name.
- ``decoder``: decoders made of layers.
- ``huggingface``, ``naming``: fields of ``config.json`` and names that families share.
- ``dense``, ``dense_gguf``: dense decoders, in folders and in GGUF files.
- ``registry``: all families.
"""
