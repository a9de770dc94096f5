# SPDX-License-Identifier: Apache-2.0
"""``fusec explain``: what becomes of a function, on random data."""

from __future__ import annotations

from collections.abc import Sequence

from fusec.api import explain, jit
from fusec.checks import check_target
from fusec.cli.bench import inference, random_call


def explain_named(
    name: str,
    specs: Sequence[str],
    *,
    target: str | None = None,
    precision: str = "ieee",
    measure: bool = False,
    errors: bool = False,
    detail: bool = False,
) -> str:
    """The report on ``module:function`` for specs such as ``x=f32[64, 256]``. See :func:`fusec.explain`.

    FusecError for a name that is none, for specs that do not fit, and for options that can't be.
    """
    check_target(target)
    function, arguments, library = random_call(name, specs)
    made = jit(target=target, precision=precision, warn=False)(function)  # type: ignore[call-overload]
    with inference(library):
        return explain(made, measure=measure, errors=errors, detail=detail, **arguments)
