"""What an ONNX file says about itself, so that its inputs can be filled: texts by key, lists as JSON."""

from __future__ import annotations

import json

from ds_tft.data.preprocessor import RELATIVE_TIME, Preprocessor
from ds_tft.export import ModelDescription


def variable_names(preprocessor: Preprocessor) -> dict[str, tuple[str, ...]]:
    """Names of the variables along the last dimension of each input; empty where there is no such input."""
    layout, roles = preprocessor.layout, preprocessor.layout.roles
    return {
        "static_reals": layout.static_reals,
        "static_categories": layout.static_categories,
        "observed_reals": (*roles.target, *layout.observed_reals),
        "observed_categories": roles.observed_categories,
        "known_reals": (RELATIVE_TIME, *layout.known_reals),
        "known_categories": roles.known_categories,
    }


def metadata(description: ModelDescription) -> dict[str, str]:
    """Returns the texts."""
    size, int8 = description.size, description.int8
    lists = {
        "targets": description.preprocessor.layout.roles.target,
        "quantiles": size.quantiles,
        **{name: names for name, names in variable_names(description.preprocessor).items() if names},
        "static_category_counts": size.static_categories,
        "observed_category_counts": size.observed_categories,
        "known_category_counts": size.known_categories,
    }
    return {
        "precision": "fp32" if int8 is None else "int8",
        "step": str(description.step),
        "units": "inputs and quantiles are scaled, as `preprocessor` says",
        **{name: json.dumps(values) for name, values in lists.items() if values},
        "preprocessor": description.preprocessor.model_dump_json(),
    }
