"""ONNX Runtime: all optimisations, through IOBinding with inputs and outputs in place."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from bench.compare.peers import Prepared
from bench.compare.peers.onnx_models import Model
from bench.compare.workloads import Array, Decode, Workload


def prepare(workload: Workload, threads: int) -> Prepared:
    model = Model(workload, contrib=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model.serialized(), options, providers=["CPUExecutionProvider"])
    arrays = _inputs(workload)
    results = [np.empty(shape, np.float32) for shape in model.outputs.values()]
    if isinstance(workload, Decode):  # the new rows are written into the caches
        results[1:] = [arrays[name] for name in workload.cache]
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for name, array in zip(model.outputs, results, strict=True):
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return Prepared(lambda: session.run_with_iobinding(binding), lambda: results[:1])


def _inputs(workload: Workload) -> dict[str, Array]:
    arrays = dict(workload.inputs)
    if isinstance(workload, Decode):
        room = np.zeros((1, workload.kv_heads, 1, workload.head_dim), np.float32)
        arrays |= {n: np.concatenate([past, room], axis=2) for n, past in workload.cache.items()}
        arrays["seqlens_k"] = np.array([workload.context - 1], np.int32)
        arrays["total"] = np.array(workload.context, np.int32)
    return arrays
