# SPDX-License-Identifier: Apache-2.0
"""What viewers are told of an op: its attributes as text, the user's line, and what is known of its kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from fusec.ir.attributes import Attributes, ConstantAttributes, ExternAttributes
from fusec.ir.graph import FusedAttributes, Graph
from fusec.ir.nodes import Op
from fusec.runtime.program import KernelReport, Program


def attributes_of(op: Op) -> dict[str, object]:
    """The fields of an op's attributes that say more than its types do."""
    record: Attributes = op.attributes
    if isinstance(record, FusedAttributes | ConstantAttributes):
        return {}
    skipped = {"types"} if isinstance(record, ExternAttributes) else set()
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name not in skipped}


def name_of(op: Op) -> str:
    """The op's name, of a library call its target."""
    return op.attributes.target if isinstance(op.attributes, ExternAttributes) else op.name


def kernel_names(graph: Graph) -> dict[Op, str]:
    """A name for each fused op, in the way that kernels are named; no two are alike."""
    names: dict[Op, str] = {}
    for op in graph.ops:
        if isinstance(op.attributes, FusedAttributes):
            base = re.sub(r"\W", "_", f"{op.attributes.kind}_{op.results[-1].name}")
            taken = set(names.values())
            names[op] = next(name for name in _numbered(base) if name not in taken)
    return names


def _numbered(base: str) -> Iterator[str]:
    yield base
    number = 1
    while True:
        yield f"{base}_{number}"
        number += 1


def report_of(op: Op, program: Program | None) -> KernelReport | None:
    """The report on a fused op's kernel."""
    return None if program is None else program.report_of(op)


def kernel_facts(report: KernelReport | None) -> dict[str, str]:
    """What the cost model says of a kernel; times in microseconds."""
    if report is None:
        return {}
    return {
        "tiles": " ".join(f"{name}={size}" for name, size in report.schedule),
        "flops": str(report.flops),
        "bytes": str(report.bytes),
        "predicted": f"{report.predicted * 1e6:.4g} us",
        "limit": f"{report.limit * 1e6:.4g} us ({report.bound})",
    }


def source_of(op: Op) -> Mapping[str, str]:
    """The user's file and line; of a fused op those of all its ops."""
    ops = op.attributes.body.ops if isinstance(op.attributes, FusedAttributes) else (op,)
    lines = dict.fromkeys(o.location.short for o in ops if o.location is not None)
    return {"source": ", ".join(lines)} if lines else {}
