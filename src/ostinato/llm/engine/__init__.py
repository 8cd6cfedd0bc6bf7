"""Continuous batching: requests share the steps of one model.

A step is one run of the model's graph on the rows of all running sequences. The scheduler takes the
decoding rows first, then chunks of prompts; keys and values lie in blocks of 64 tokens, which a
radix tree over tokens shares among sequences with a common prefix.
"""
