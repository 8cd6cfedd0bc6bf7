"""PyTorch exports of Hugging Face architectures, compared with ONNX Runtime.

``python -m tests.peers.hugging_face`` exports and compares all of them, and writes the results to
``tests/peers/hugging_face.txt``.
"""
