# SPDX-License-Identifier: Apache-2.0
"""Many spellings, one form: composites opened into primitives, contractions into ``dot``, views composed."""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir.graph import Graph
from fusec.passes.canonicalize.arithmetic import ARITHMETIC_RULES
from fusec.passes.canonicalize.attention import ATTENTION_RULES
from fusec.passes.canonicalize.composites import COMPOSITE_RULES
from fusec.passes.canonicalize.contractions import CONTRACTION_RULES
from fusec.passes.canonicalize.einsum import EINSUM_RULES
from fusec.passes.canonicalize.integers import INTEGER_RULES
from fusec.passes.canonicalize.layouts import LAYOUT_RULES
from fusec.passes.canonicalize.log_softmax import LOG_SOFTMAX_RULES
from fusec.passes.canonicalize.lookups import LOOKUP_RULES
from fusec.passes.canonicalize.one_hot import ONE_HOT_RULES
from fusec.passes.canonicalize.scans import SCAN_RULES
from fusec.passes.canonicalize.sinks import SINK_RULES
from fusec.passes.canonicalize.strides import STRIDE_RULES
from fusec.passes.canonicalize.views import VIEW_RULES
from fusec.passes.canonicalize.windows import WINDOW_RULES
from fusec.passes.rewrite import Rule, rewrite
from fusec.runtime.program import Declined

RULES: tuple[Rule, ...] = (
    *SINK_RULES,
    *COMPOSITE_RULES,
    *EINSUM_RULES,
    *ATTENTION_RULES,
    *STRIDE_RULES,
    *VIEW_RULES,
    *LOOKUP_RULES,
    *SCAN_RULES,
    *LAYOUT_RULES,
    *CONTRACTION_RULES,
    *WINDOW_RULES,
    *ONE_HOT_RULES,
    *ARITHMETIC_RULES,
    *LOG_SOFTMAX_RULES,
    *INTEGER_RULES,
)


def canonicalize(graph: Graph, *, log: Callable[[Declined], None] | None = None) -> Graph:
    """Afterwards the graph holds no composite op; ``log`` gets what was declined, and why."""
    return rewrite(graph, RULES, log=log)
