"""OpenVINO: one stream of lowest latency, in float32, inputs and outputs in place."""

from __future__ import annotations

import numpy as np
import openvino as ov
from bench.compare.peers import Prepared
from bench.compare.peers.onnx_models import Model
from bench.compare.workloads import Decode, Workload

CONFIG = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    "INFERENCE_PRECISION_HINT": "f32",  # otherwise bfloat16, where the processor has it
}


def prepare(workload: Workload, threads: int) -> Prepared:
    core, model = ov.Core(), Model(workload)
    config = CONFIG | {"INFERENCE_NUM_THREADS": str(threads)}
    compiled = core.compile_model(core.read_model(model.serialized()), "CPU", config)
    request = compiled.create_infer_request()
    arrays = dict(workload.inputs)
    if isinstance(workload, Decode):
        arrays |= workload.cache
    for name, array in arrays.items():
        request.set_tensor(name, ov.Tensor(array, shared_memory=True))
    results = [np.empty(shape, np.float32) for shape in model.outputs.values()]
    for i, array in enumerate(results):
        request.set_output_tensor(i, ov.Tensor(array, shared_memory=True))

    return Prepared(lambda: request.infer(share_outputs=True), lambda: results[:1])
