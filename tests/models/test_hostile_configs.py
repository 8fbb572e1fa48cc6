"""Configs come from files that anybody may have written: whatever a field holds, there is a model or a ModelError."""

from __future__ import annotations

import contextlib

import pytest

from tests.goldens.cases import ENCODERS, Case
from tests.goldens.cases.gemma import GEMMA4
from tests.goldens.cases.layernorm import LAYERNORM
from tests.goldens.cases.mla import DEEPSEEK_V4
from tests.goldens.cases.moe import MOE
from tests.goldens.cases.phi import PHI3
from vjax.errors import ModelError
from vjax.models.encoder import Encoder
from vjax.models.model import Model

VALUES = [None, 0, -1, 1, "x", [], {}, 1e300, -2.5, True, [1], {"a": 1}, 10**12, float("nan")]
MORE = ("layer_types", "sliding_window", "rope_scaling", "rope_parameters", "head_dim", "num_labels")


@pytest.mark.parametrize("case", LAYERNORM + PHI3 + GEMMA4 + DEEPSEEK_V4 + MOE + ENCODERS, ids=lambda case: case.name)
def test_any_value_of_any_field(case: Case) -> None:
    for key in (*case.config, *MORE):
        for value in VALUES:
            build({**case.config, key: value}, case)
    scaling = case.config.get("rope_scaling") or {}
    for key in scaling:
        for value in VALUES:
            build({**case.config, "rope_scaling": {**scaling, key: value}}, case)


def build(hf: dict[str, object], case: Case) -> None:
    with contextlib.suppress(ModelError):
        (Encoder if case in ENCODERS else Model).from_hf(hf)
