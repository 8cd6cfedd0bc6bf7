"""Structure-aware mutation of valid ONNX models: hostile files that a byte flip does not make."""
