"""The bound that fusec promises, for tests: as exact as the code as written, NaN and infinity where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fusec.ir.graph import Graph
from fusec.ir.interpret import interpret

Array = npt.NDArray[Any]

ULPS = 2.0
"""Error always allowed, in ulp of the result's dtype at the greatest finite magnitude of the exact result.

Where eager happens to be exact to the last bit, twice its error is nothing; two ulp is what one more
rounding of an intermediate value and one of the result can cost.
"""


def assert_close_to_oracle(
    actual: Any, exact: Graph | Any, eager: Any, slack: float = 2.0, inputs: Sequence[Any] | None = None
) -> None:
    """AssertionError unless ``actual`` is as good as ``eager``, measured against ``exact``.

    ``actual`` and ``eager`` are arrays or tensors of any library and device, or equally long sequences of them.
    ``exact`` is the float64 result, or a graph that is run in float64 on ``inputs``. Checked are the shape and
    dtype; bools and integers, which must be equal to eager's; NaN and each infinity, which must be where eager
    has them; and the maximum error, which must be at most ``slack`` times eager's and :data:`ULPS` more.
    """
    if isinstance(exact, Graph):
        assert inputs is not None, "a graph needs the inputs to run on"
        exact = interpret(exact, [as_numpy(a) for a in inputs], float64=True)
        exact = exact if isinstance(actual, list | tuple) else exact[0]
    if isinstance(actual, list | tuple):
        assert len(actual) == len(eager) == len(exact), f"{len(actual)} results, eager has {len(eager)}"
        for position, (a, x, e) in enumerate(zip(actual, exact, eager)):
            _check(as_numpy(a), as_numpy(x), as_numpy(e), slack, f"result {position}: ")
    else:
        _check(as_numpy(actual), as_numpy(exact), as_numpy(eager), slack, "")


def _check(actual: Array, exact: Array, eager: Array, slack: float, what: str) -> None:
    assert actual.shape == eager.shape, f"{what}shape {actual.shape}, eager has {eager.shape}"
    assert actual.dtype == eager.dtype, f"{what}dtype {actual.dtype}, eager has {eager.dtype}"
    if actual.dtype.kind in "biu":
        differ = int(np.count_nonzero(actual != eager))
        assert differ == 0, f"{what}{differ} of {actual.size} elements differ from eager's"
        return
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    a, x, e = actual.astype(wide), exact.astype(wide), eager.astype(wide)
    for name, found in (("NaN", np.isnan), ("inf", _positive), ("-inf", _negative)):
        misplaced = int(np.count_nonzero(found(a) != found(e)))
        assert misplaced == 0, f"{what}{name} is not where eager has it, at {misplaced} of {actual.size} elements"
    finite = np.isfinite(e) & np.isfinite(x)
    if not finite.any():
        return
    ours, theirs = np.abs(a - x)[finite], np.abs(e - x)[finite]
    allowed = slack * theirs.max() + ULPS * _ulp(np.abs(x)[finite].max(), actual.dtype)
    worst = int(ours.argmax())
    where = np.flatnonzero(finite.ravel())[worst]
    values = f"exact {x[finite][worst]:.9g}, got {a[finite][worst]:.9g}"
    limit = f"eager's is {theirs.max():.3g}, allowed {allowed:.3g}"
    assert ours[worst] <= allowed, f"{what}error {ours[worst]:.3g} at element {where} ({values}); {limit}"


def _positive(x: Array) -> Array:
    return np.asarray(np.isinf(x) & (x.real > 0))


def _negative(x: Array) -> Array:
    return np.asarray(np.isinf(x) & (x.real < 0))


def _ulp(magnitude: float, dtype: np.dtype[Any]) -> float:
    """The distance of neighbours at ``magnitude`` in a float (or complex) dtype."""
    limits = ml_dtypes.finfo(dtype)
    return float(limits.eps) * max(magnitude, float(limits.smallest_normal))


_FOREIGN = {
    "torch.bfloat16": ("int16", ml_dtypes.bfloat16),
    "torch.float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
    "torch.float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
}


def as_numpy(array: Any) -> Array:
    """A NumPy array of an array, or of a torch tensor or CuPy array on any device; bfloat16 is kept."""
    if hasattr(array, "detach"):
        tensor = array.detach().cpu()
        if str(tensor.dtype) in _FOREIGN:
            import torch

            stored, wanted = _FOREIGN[str(tensor.dtype)]
            return np.asarray(tensor.contiguous().view(getattr(torch, stored)).numpy().view(wanted))
        return np.asarray(tensor.numpy())
    return np.asarray(array.get() if hasattr(array, "get") and not isinstance(array, np.ndarray) else array)
