"""Rows and weights -> their product by oneDNN, which torch has on CPUs but uses only for what it compiles.

Measured on a Zen 4 against torch's default (MKL), fp32, layers of 1,024×1,024: 7 to 14% less time at 256 to
2,048 rows with a ReLU, which oneDNN applies while the product is in the registers; 11% at 4,096 without one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .scratch import may_overwrite


def usable(rows: Tensor) -> bool:
    """Whether torch can be asked for it: single precision on a CPU, no gradient, no compiler."""
    onednn = torch.backends.mkldnn
    return (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and may_overwrite(rows)
        and bool(onednn.is_available() and onednn.enabled)  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # what torch's compiler emits; no public name
    )


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """(…, in), (out, in), (out,) -> fresh memory (…, out), where it is usable."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        rows, weight, bias, "relu" if relu else "none", [], ""
    )
    return product
