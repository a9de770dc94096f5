# SPDX-License-Identifier: Apache-2.0
"""``fusec bisect``: from a function or a reproducer to the pass or kernel at fault."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusec.bisect import bisect
from fusec.cli.bench import random_call
from fusec.errors import FusecError
from fusec.reproducer import capture_reproducer, load_reproducer, save_reproducer


def bisect_command(
    what: str, specs: Sequence[str], output: Path | None, tolerance: float | None = None
) -> tuple[str, bool]:
    """See :func:`fusec.bisect.bisect`; ``what`` is ``module:function`` with specs, or a reproducer's folder."""
    if ":" in what and not Path(what).is_dir():
        function, arguments, _ = random_call(what, specs)
        reproducer = capture_reproducer(function, arguments)
    elif specs:
        raise FusecError(f"{what} is no module:function, and a reproducer takes no specs")
    else:
        reproducer = load_reproducer(Path(what))
    if output is not None:
        save_reproducer(reproducer, output)
    return bisect(reproducer, tolerance)
