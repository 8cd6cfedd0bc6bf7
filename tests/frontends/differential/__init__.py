"""Random ONNX graphs, run by Ostinato and by ONNX Runtime."""
