"""Mutations: small changes of a model that respect its structure and break its rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from tests.frontends.mutation.sites import (
    HOSTILE_NAMES,
    HOSTILE_REALS,
    attributes,
    bodies,
    graphs,
    hostile_size,
    names,
    nodes,
    pick,
    rename,
    tensors,
    values,
)

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["MUTATIONS", "Mutation", "mutate"]

#: Changes the model; returns whether it found something to change.
Mutation = Callable[[random.Random, "ModelProto"], bool]


def mutate(rng: random.Random, model: ModelProto, others: list[ModelProto]) -> list[str]:
    """Change ``model`` in one to three ways; their names.

    Args:
        others: models whose op types and attributes are put into this one.
    """
    done: list[str] = []
    wanted = rng.choice((1, 1, 1, 2, 2, 3))
    for _ in range(40):
        mutation = rng.choice(MUTATIONS)
        foreign = (rng.choice(others),) if mutation in (foreign_attribute, foreign_op) else ()
        try:
            changed = mutation(rng, model, *foreign)
        except DecodeError:  # the model nests too deep for protobuf by now
            break
        if changed:
            done.append(mutation.__name__)
        if len(done) == wanted:
            break
    return done


# -- attributes ----------------------------------------------------------------------------------


def attribute_value(rng: random.Random, model: ModelProto) -> bool:
    """Another number, string or list, of the type that is declared."""
    attribute = pick(rng, attributes(model))
    if attribute is None:
        return False
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = hostile_size(rng)
    elif kind == AttributeProto.FLOAT:
        attribute.f = rng.choice(HOSTILE_REALS)
    elif kind == AttributeProto.STRING:
        attribute.s = rng.choice(
            (b"", b"\xff\xfe", b"linear", b"SAME_UPPER", b"bij->", b"x" * 70000)
        )
    elif kind == AttributeProto.INTS:
        _vary(rng, attribute.ints, hostile_size(rng))
    elif kind == AttributeProto.FLOATS:
        _vary(rng, attribute.floats, rng.choice(HOSTILE_REALS))
    elif kind == AttributeProto.STRINGS:
        _vary(rng, attribute.strings, rng.choice((b"", b"\xff", b"Tanh", b"Nothing")))
    else:
        return False
    return True


def _vary(rng: random.Random, items: Any, item: Any) -> None:
    """Change, add, remove or repeat elements of a list."""
    kind = rng.randrange(5)
    if kind == 0 and items:
        items[rng.randrange(len(items))] = item
    elif kind == 1 and items:
        items.pop(rng.randrange(len(items)))
    elif kind == 2:
        items.extend([item] * rng.choice((1, 2, 70_000)))
    elif kind == 3:
        items.extend(list(items))
    else:
        del items[:]


def attribute_type(rng: random.Random, model: ModelProto) -> bool:
    """A type that the contents do not have."""
    attribute = pick(rng, attributes(model))
    if attribute is None:
        return False
    attribute.type = rng.choice(list(AttributeProto.AttributeType.values()))
    return True


def attribute_kind(rng: random.Random, model: ModelProto) -> bool:
    """Contents of another type, declared as what they are."""
    node = pick(rng, [node for node in nodes(model) if node.attribute])
    if node is None:
        return False
    contents = (1, 1.5, "text", [1, 2], [1.5], ["a"], numpy_helper.from_array(np.zeros(2)), [1] * 9)
    position = rng.randrange(len(node.attribute))
    name = node.attribute[position].name
    del node.attribute[position]
    node.attribute.append(helper.make_attribute(name, rng.choice(contents)))
    return True


def attribute_missing(rng: random.Random, model: ModelProto) -> bool:
    """One attribute less."""
    node = pick(rng, [node for node in nodes(model) if node.attribute])
    if node is None:
        return False
    del node.attribute[rng.randrange(len(node.attribute))]
    return True


def attribute_twice(rng: random.Random, model: ModelProto) -> bool:
    """The same attribute again."""
    node = pick(rng, [node for node in nodes(model) if node.attribute])
    if node is None:
        return False
    node.attribute.append(rng.choice(node.attribute))
    return True


def attribute_reference(rng: random.Random, model: ModelProto) -> bool:
    """A reference to an attribute of a function, which may not exist."""
    attribute = pick(rng, attributes(model))
    if attribute is None:
        return False
    attribute.ref_attr_name = rng.choice((attribute.name, "slope", "nothing"))
    return True


def foreign_attribute(rng: random.Random, model: ModelProto, other: ModelProto) -> bool:
    """An attribute of another op."""
    node, attribute = pick(rng, nodes(model)), pick(rng, attributes(other))
    if node is None or attribute is None:
        return False
    node.attribute.append(attribute)
    return True


# -- nodes ---------------------------------------------------------------------------------------


def foreign_op(rng: random.Random, model: ModelProto, other: ModelProto) -> bool:
    """Another op over the same operands."""
    node, source = pick(rng, nodes(model)), pick(rng, nodes(other))
    if node is None or source is None:
        return False
    node.op_type, node.domain = source.op_type, source.domain
    if rng.random() < 0.5:
        del node.attribute[:]
        node.attribute.extend(source.attribute)
    return True


def node_input(rng: random.Random, model: ModelProto) -> bool:
    """An operand that is another tensor, its own result, missing, or no name at all."""
    node = pick(rng, [node for node in nodes(model) if node.input])
    if node is None:
        return False
    at = rng.randrange(len(node.input))
    node.input[at] = rng.choice(
        (*rng.sample(names(model), min(4, len(names(model)))), *node.output, "", "nothing")
    )
    return True


def node_inputs(rng: random.Random, model: ModelProto) -> bool:
    """Operands that are removed, repeated, added or in another order."""
    node = pick(rng, nodes(model))
    if node is None:
        return False
    kind = rng.randrange(4)
    if kind == 0 and node.input:
        node.input.pop(rng.randrange(len(node.input)))
    elif kind == 1:
        node.input.extend([rng.choice(names(model) or [""])] * rng.choice((1, 1, 2, 300)))
    elif kind == 2:
        mixed = rng.sample(list(node.input), len(node.input))
        node.input[:] = mixed
    else:
        node.input.insert(0, "")
    return True


def node_outputs(rng: random.Random, model: ModelProto) -> bool:
    """Results that are removed, repeated, added, unnamed, or called as something else is."""
    node = pick(rng, nodes(model))
    if node is None:
        return False
    kind = rng.randrange(4)
    if kind == 0 and node.output:
        node.output.pop()
    elif kind == 1:
        node.output.append(rng.choice(("", "extra", *node.output)))
    elif kind == 2 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(names(model))
    elif node.output:
        node.output[rng.randrange(len(node.output))] = ""
    return True


def node_gone(rng: random.Random, model: ModelProto) -> bool:
    """One node less."""
    body = pick(rng, [body for body in bodies(model) if body.node])
    if body is None:
        return False
    del body.node[rng.randrange(len(body.node))]
    return True


def node_twice(rng: random.Random, model: ModelProto) -> bool:
    """A node again, or in another body."""
    source = pick(rng, nodes(model))
    if source is None:
        return False
    rng.choice(bodies(model)).node.append(source)
    return True


def nodes_mixed(rng: random.Random, model: ModelProto) -> bool:
    """Nodes in another order, which changes no result."""
    body = rng.choice(bodies(model))
    mixed = [NodeProto.FromString(node.SerializeToString()) for node in body.node]
    rng.shuffle(mixed)
    del body.node[:]
    body.node.extend(mixed)
    return len(mixed) > 1


def node_domain(rng: random.Random, model: ModelProto) -> bool:
    """An op of another operator domain or overload."""
    node = pick(rng, nodes(model))
    if node is None:
        return False
    node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "mine", "com.microsoft", "\0", "none"))
    node.overload = rng.choice(("", "", "other"))
    return True


# -- names ---------------------------------------------------------------------------------------


def renamed(rng: random.Random, model: ModelProto) -> bool:
    """A hostile name for a tensor, wherever it stands: the result stays right."""
    old = pick(rng, names(model))
    if old is None:
        return False
    rename(model, old, rng.choice(HOSTILE_NAMES[1:]))
    return True


def name_of_something(rng: random.Random, model: ModelProto) -> bool:
    """A hostile name in one place."""
    things: list[Any] = [*nodes(model), *values(model), *tensors(model), *bodies(model)]
    rng.choice(things).name = rng.choice(HOSTILE_NAMES)
    return True


def dim_name(rng: random.Random, model: ModelProto) -> bool:
    """A hostile name of a size."""
    dims = [d for v in values(model) for d in v.type.tensor_type.shape.dim if d.dim_param]
    dim = pick(rng, dims)
    if dim is None:
        return False
    dim.dim_param = rng.choice((*HOSTILE_NAMES, "N + 1", "N", "-1", "0", "None"))
    return True


# -- types ---------------------------------------------------------------------------------------


def dim(rng: random.Random, model: ModelProto) -> bool:
    """Another size of an input, output or inner value; or one more, one less, none at all."""
    value = pick(rng, [v for v in values(model) if v.type.HasField("tensor_type")])
    if value is None:
        return False
    shape = value.type.tensor_type.shape
    kind = rng.randrange(7)
    if kind < 3 and shape.dim:
        rng.choice(shape.dim).dim_value = hostile_size(rng)
    elif kind == 3 and shape.dim:
        rng.choice(shape.dim).dim_param = rng.choice(("N", "S", "", "unheard"))
    elif kind == 4:
        shape.dim.add().dim_value = hostile_size(rng)
    elif kind == 5 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim))]
    else:
        value.type.tensor_type.ClearField("shape")
    return True


def many_dims(rng: random.Random, model: ModelProto) -> bool:
    """A rank that no array has."""
    value = pick(rng, values(model))
    if value is None:
        return False
    for _ in range(rng.choice((9, 33, 65, 1000))):
        value.type.tensor_type.shape.dim.add().dim_value = rng.choice((1, 1, 2))
    return True


def element_type(rng: random.Random, model: ModelProto) -> bool:
    """Another element type of a value or tensor."""
    typed: list[Any] = [v.type.tensor_type for v in values(model)]
    number = rng.choice((*range(28), -1, 99))
    if rng.random() < 0.5 and tensors(model):
        rng.choice(tensors(model)).data_type = number
    elif typed:
        rng.choice(typed).elem_type = number
    else:
        return False
    return True


def type_kind(rng: random.Random, model: ModelProto) -> bool:
    """A value that is no tensor, or has no type."""
    value = pick(rng, values(model))
    if value is None:
        return False
    inner = TypeProto()
    inner.CopyFrom(value.type)
    kind = rng.randrange(5)
    value.ClearField("type")
    if kind == 0:
        value.type.sequence_type.elem_type.CopyFrom(inner)
    elif kind == 1:
        value.type.optional_type.elem_type.CopyFrom(inner)
    elif kind == 2:
        value.type.sparse_tensor_type.elem_type = 1
    elif kind == 3:
        value.type.map_type.key_type = 7
        value.type.map_type.value_type.CopyFrom(inner)
    return True


# -- tensors -------------------------------------------------------------------------------------


def tensor_dims(rng: random.Random, model: ModelProto) -> bool:
    """A shape that the data may not have."""
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return False
    kind = rng.randrange(4)
    if kind == 0:
        tensor.dims.append(rng.choice((1, 0, hostile_size(rng))))
    elif kind == 1 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = hostile_size(rng)
    elif kind == 2:
        tensor.dims[:] = rng.choice(
            ([1 << 32, 1 << 32], [1 << 40, 0], [0, 1 << 62], [1] * 70, [-1, -1])
        )
    else:
        del tensor.dims[:]
    return True


def tensor_elements(rng: random.Random, model: ModelProto) -> bool:
    """Hostile elements: sizes, axes, indices, weights."""
    tensor = pick(rng, [t for t in tensors(model) if _readable(t)])
    if tensor is None:
        return False
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    for _ in range(rng.choice((1, 1, array.size))):
        at = rng.randrange(array.size)
        if array.dtype.kind == "f":
            flat[at] = array.dtype.type(rng.choice(HOSTILE_REALS))
        elif array.dtype.kind == "b":
            flat[at] = not flat[at]
        else:
            info = np.iinfo(array.dtype)
            flat[at] = min(max(hostile_size(rng), info.min), info.max)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _readable(tensor: TensorProto) -> bool:
    """Whether ``tensor`` is whole, of numbers, and not empty."""
    try:
        array = numpy_helper.to_array(tensor)
    except Exception:
        return False
    return array.size > 0 and array.dtype.kind in "biuf"


def tensor_bytes(rng: random.Random, model: ModelProto) -> bool:
    """Data of another length, in two places at once, or in none."""
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return False
    kind = rng.randrange(6)
    if kind == 0:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif kind == 1:
        tensor.raw_data = tensor.raw_data + bytes(rng.choice((1, 3, 4, 8, 5000)))
    elif kind == 2:
        tensor.float_data.append(1.0)
    elif kind == 3:
        tensor.int64_data.append(1)
    elif kind == 4:
        for field in ("raw_data", "float_data", "int64_data", "int32_data"):
            tensor.ClearField(field)
    else:
        tensor.string_data.append(b"\xff\0")
    return True


def tensor_segment(rng: random.Random, model: ModelProto) -> bool:
    """A part of a tensor, as the format foresees and nothing writes."""
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return False
    tensor.segment.begin, tensor.segment.end = hostile_size(rng), hostile_size(rng)
    return True


def external(rng: random.Random, model: ModelProto) -> bool:
    """Data in a file: here, elsewhere, nowhere; of any length."""
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return False
    if rng.random() < 0.8:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = (
        "data.bin", "data.bin", "huge.bin", "link.bin", "folder", "folder/data.bin", "up/data.bin",
        "../data.bin", "/etc/passwd", "", ".", "nothing.bin", "data.bin\0", "C:\\data.bin",
        "x" * 5000, "fifo", "\ud7ff", "./folder/../data.bin", "model.onnx",
    )  # fmt: skip
    counts = (
        "0",
        "4",
        "-1",
        "1e3",
        "",
        " 4",
        "٣",
        "48",
        "99999999999999999999",
        str(1 << 62),
        "0x8",
    )
    for key, texts in (("location", places), ("offset", counts), ("length", counts)):
        for _ in range(rng.choice((0, 1, 1, 1, 2)) if key != "location" else 1):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, rng.choice(texts)
    return True


def sparse(rng: random.Random, model: ModelProto) -> bool:
    """An initializer as a sparse tensor, its indices in any state."""
    graph = pick(rng, [graph for graph in graphs(model) if graph.initializer])
    if graph is None:
        return False
    at = rng.randrange(len(graph.initializer))
    made = graph.sparse_initializer.add()
    made.values.CopyFrom(graph.initializer[at])
    made.dims.extend(rng.choice(([4, 3], [1 << 40, 1 << 40], [-1], [], [12])))
    indices = np.array([hostile_size(rng) for _ in range(rng.choice((0, 1, 3)))], np.int64)
    made.indices.CopyFrom(numpy_helper.from_array(indices))
    if rng.random() < 0.7:
        del graph.initializer[at]
    return True


def strings(rng: random.Random, model: ModelProto) -> bool:
    """A tensor of strings."""
    tensor = pick(rng, tensors(model))
    if tensor is None:
        return False
    name, dims = tensor.name, list(tensor.dims)
    tensor.CopyFrom(helper.make_tensor(name, TensorProto.STRING, [1], [b"\xff\xfe"]))
    tensor.dims[:] = rng.choice((dims, [1], [2]))
    return True


# -- the graph -----------------------------------------------------------------------------------


def initializers(rng: random.Random, model: ModelProto) -> bool:
    """An initializer that is gone, stored twice, or an input's or a result's as well."""
    graph = pick(rng, [graph for graph in graphs(model) if graph.initializer])
    if graph is None:
        return False
    at = rng.randrange(len(graph.initializer))
    kind = rng.randrange(4)
    if kind == 0:
        del graph.initializer[at]
    elif kind == 1:
        graph.initializer.append(graph.initializer[at])
    elif kind == 2:
        graph.initializer[at].name = rng.choice(names(model))
    else:
        stored = graph.initializer[at]
        graph.input.append(
            helper.make_tensor_value_info(stored.name, stored.data_type, stored.dims)
        )
    return True


def outputs(rng: random.Random, model: ModelProto) -> bool:
    """Results that are others, listed twice, or none."""
    graph = rng.choice(graphs(model))
    kind = rng.randrange(4)
    if kind == 0 and graph.output:
        rng.choice(graph.output).name = rng.choice((*names(model), "nothing"))
    elif kind == 1 and graph.output:
        graph.output.append(graph.output[0])
    elif kind == 2 and graph.output:
        del graph.output[rng.randrange(len(graph.output))]
    else:
        graph.output.add().name = rng.choice((*names(model), "nothing", ""))
    return True


def inputs(rng: random.Random, model: ModelProto) -> bool:
    """Inputs that are gone, listed twice, in another order, or more."""
    graph = rng.choice(graphs(model))
    kind = rng.randrange(3)
    if kind == 0 and graph.input:
        del graph.input[rng.randrange(len(graph.input))]
    elif kind == 1 and graph.input:
        graph.input.append(graph.input[0])
    else:
        graph.input.append(
            helper.make_tensor_value_info(rng.choice((*names(model), "more")), 1, [2])
        )
    return True


def versions(rng: random.Random, model: ModelProto) -> bool:
    """Another operator set or format version."""
    kind = rng.randrange(5)
    if kind < 2 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*range(-1, 31), 1 << 40, -(1 << 63)))
    elif kind == 2:
        model.ir_version = rng.choice((-1, 0, 1, 3, 8, 14, 15, 1 << 40))
    elif kind == 3:
        model.opset_import.append(helper.make_opsetid(rng.choice(("", "ai.onnx", "mine", "\0")), 9))
    else:
        del model.opset_import[:]
    return True


def branches(rng: random.Random, model: ModelProto) -> bool:
    """A node within many branches of ``If``, one in the other."""
    graph = rng.choice(graphs(model))
    if not graph.node:
        return False
    at = rng.randrange(len(graph.node))
    inner = graph.node[at]
    if not inner.output:
        return False
    condition = pick(rng, names(model)) or ""
    if rng.random() < 0.7:
        condition = "always"
        if all(tensor.name != condition for tensor in model.graph.initializer):
            model.graph.initializer.append(numpy_helper.from_array(np.array(True), condition))
    for _ in range(rng.choice((1, 2, 30, 59, 200))):
        inner = _wrapped(inner, condition)
    graph.node[at].CopyFrom(inner)
    return True


def _wrapped(node: NodeProto, condition: str) -> NodeProto:
    made = NodeProto(op_type="If", input=[condition], output=node.output)
    for name in ("then_branch", "else_branch")[: 2 if node.op_type != "If" else 1]:
        attribute = made.attribute.add()
        attribute.name, attribute.type = name, AttributeProto.GRAPH
        attribute.g.name = name
        attribute.g.node.add().CopyFrom(node)
        for output in node.output:
            attribute.g.output.add().name = output
    if len(made.attribute) == 1:
        other = made.attribute.add()
        other.name, other.type = "else_branch", AttributeProto.GRAPH
        leaf = other.g.node.add()
        leaf.op_type = "Constant"
        leaf.attribute.append(helper.make_attribute("value_float", 1.0))
        leaf.output.append(node.output[0])
        other.g.output.add().name = node.output[0]
    return made


def functions(rng: random.Random, model: ModelProto) -> bool:
    """A node as a function of the model, which may call itself or lack what it needs."""
    node = pick(rng, [node for node in model.graph.node if node.output])
    if node is None:
        return False
    made = model.functions.add()
    made.domain, made.name = "made", rng.choice(("f", "g"))
    body = made.node.add()
    body.CopyFrom(node)
    made.input.extend(name for name in dict.fromkeys(node.input) if name)
    made.output.extend(node.output)
    made.opset_import.extend(model.opset_import)
    kind = rng.randrange(6)
    if kind == 0:
        body.op_type, body.domain = made.name, "made"
    elif kind == 1 and made.input:
        made.input.pop()
    elif kind == 2:
        del made.opset_import[:]
    elif kind == 3:
        made.output.append("nothing")
    arguments = list(made.input)
    node.input[:] = arguments[: rng.choice((len(arguments), len(arguments), 0))]
    node.op_type, node.domain = made.name, "made"
    del node.attribute[:]
    model.opset_import.append(helper.make_opsetid("made", 1))
    return True


MUTATIONS: tuple[Callable[..., bool], ...] = (
    attribute_value, attribute_value, attribute_value, attribute_type, attribute_kind,
    attribute_missing, attribute_twice, attribute_reference, foreign_attribute, foreign_op,
    node_input, node_input, node_inputs, node_outputs, node_gone, node_twice, nodes_mixed,
    node_domain, renamed, name_of_something, dim_name, dim, dim, many_dims, element_type, type_kind,
    tensor_dims, tensor_elements, tensor_elements, tensor_elements, tensor_bytes, tensor_segment,
    external, sparse, strings, initializers, outputs, inputs, versions, branches, functions,
)  # fmt: skip
