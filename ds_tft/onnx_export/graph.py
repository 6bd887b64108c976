"""An ONNX graph while it is being written: operations, and the tensors that they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
"""The first one with a layer norm. Nothing here needs more, and the lower it is, the more runtimes read it."""
IR_VERSION = 8
"""The oldest file format for that opset."""

Attributes = Mapping[str, int | float | Sequence[int]]
Array = NDArray[np.generic]


class Graph:
    """Collects the parts of one graph. Values are known by name; each has a name of its own."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._scope = ""
        self._used: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Bytes of all constants."""
        return sum(len(tensor.raw_data) for tensor in self._constants.values())

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Names what is added meanwhile after a block of the model."""
        outer, self._scope = self._scope, f"{name}/"
        yield
        self._scope = outer

    def input(self, name: str, shape: Sequence[int | str], dtype: type[np.generic]) -> str:
        """Adds an input of the model; a length that is a text is free."""
        self._inputs.append(_value(name, shape, dtype))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str]) -> None:
        """Makes a value of float32 an output of the model, under a name of its own."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}/Identity"))
        self._outputs.append(_value(name, shape, np.float32))

    def add(
        self, operation: str, inputs: Sequence[str], attributes: Attributes | None = None, *, results: int = 1
    ) -> list[str]:
        """Adds an operation.

        Args:
            operation: One of ONNX.
            inputs: Names of values; an empty one leaves an optional input out.
            attributes: Its attributes.
            results: How many it has.

        Returns:
            The names of its results.
        """
        name = f"{self._scope}{operation}"
        self._used[name] += 1
        name = f"{name}_{self._used[name]}"
        names = [name] if results == 1 else [f"{name}.{place}" for place in range(results)]
        node = helper.make_node(operation, inputs, names, name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in (attributes or {}).items())
        self._nodes.append(node)
        return names

    def one(self, operation: str, *inputs: str, attributes: Attributes | None = None) -> str:
        """Adds an operation with one result and returns its name."""
        return self.add(operation, inputs, attributes)[0]

    def constant(self, name: str, values: Array) -> str:
        """Adds a tensor; the same name again is the same tensor."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def whole(self, *numbers: int) -> str:
        """Adds a list of whole numbers, int64, such as a shape."""
        return self.constant(f"whole_{'_'.join(map(str, numbers))}", np.array(numbers, dtype=np.int64))

    def model(self, name: str, version: str, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """Puts everything together.

        Args:
            name: Of the graph.
            version: Of this package.
            metadata: Texts by key.
        """
        graph = helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ds_tft",
            producer_version=version,
        )
        helper.set_model_props(model, dict(metadata))
        return model


def _value(name: str, shape: Sequence[int | str], dtype: type[np.generic]) -> onnx.ValueInfoProto:
    """Describes an input or output."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, list(shape))
