# SPDX-License-Identifier: Apache-2.0
"""Maps that are computed again where another kernel reads them, as that moves fewer bytes than storing their result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from fusec.ir.nodes import Op, Value
from fusec.passes.groups.grow import is_cheap, widens
from fusec.passes.groups.partition import Group, Partition

LEAST = 1 << 16
"""Elements of a result below which it is left where it is: a cache holds it."""

MOST = 8
"""Maps of one result that are computed again."""

_KINDS = ("map", "row")
_VIEWS = frozenset({"permute", "reshape", "slice"})
"""Views that show each element once at most."""


def recompute_maps(partition: Partition) -> None:
    """Frees cheap maps that a group stores for others, where their operands are in memory and are fewer bytes: each
    group that reads the result has a copy of them.

    A norm over images widens what it reads for its statistics and again to normalise it: 16 bits are read twice, and no
    32 written.
    """
    for op in reversed(partition.graph.ops):
        group = partition.owner.get(op)
        if group is None or op in group.beside or not _is_large_map(op):
            continue
        if all(reader in group.ops for reader in partition.compute_consumers(op)):
            continue
        for free in _recomputed(partition, group, op):
            partition.free_op(group, free)


def _is_large_map(op: Op) -> bool:
    return op.definition.kind == "elementwise" and op.result.type.is_static and op.result.type.size >= LEAST


def _chain(partition: Partition, group: Group, last: Op) -> list[Op]:
    """The maps of the group that make a result from what is in memory; none where one can't be copied."""
    found: list[Op] = []
    ahead = [last]
    while ahead:
        op = ahead.pop()
        if op in found:
            continue
        if op.definition.kind != "elementwise" or not is_cheap(op) or not _can_be_copied(partition, group, op):
            return []
        found.append(op)
        if len(found) > MOST:
            return []
        makers = (partition.producers.get(v) for v in partition.sources(op))
        ahead += [made for made in makers if made is not None and made in group.ops]
    return found


def _can_be_copied(partition: Partition, group: Group, op: Op) -> bool:
    """Whether only maps and reductions of other groups, and ops of its own, read the op's result, each element once."""
    if partition.escapes(op) or op.result in partition.stored:
        return False
    for user in _users(partition, op.result):
        if user is None:
            return False
        other = partition.owner.get(user)
        if other is None or other.kind not in _KINDS or user.definition.kind not in ("elementwise", "reduce"):
            return False
    return True


def _users(partition: Partition, value: Value) -> Iterator[Op | None]:
    """Compute ops that read a value; None for one that reads it in another way than element by element."""
    for user in partition.uses[value]:
        if user not in partition.free:
            yield user
        elif user.definition.kind == "view" and user.name not in _VIEWS:
            yield None
        else:
            yield from (u for result in user.results for u in _users(partition, result))


def _recomputed(partition: Partition, group: Group, op: Op) -> list[Op]:
    """The maps that readers of a result compute again; none where its bytes, written and read, are the fewest.

    Those are all that make it from what is in memory, or the cast alone that widens what the group then stores: where
    each block of a network adds to the gradient of the next, all of them would be read again and again.
    """
    chains = [_chain(partition, group, op)]
    if widens(op) and _can_be_copied(partition, group, op):
        chains.append([op])
    chains = [chain for chain in chains if chain]
    if not chains:
        return []
    readers = {partition.owner[c] for c in partition.compute_consumers(op)} - {group}
    least, best = float(_bytes(op.result) * (1 + len(readers))), list[Op]()
    for chain in chains:
        moved = _moved(partition, group, op, chain, readers)
        if moved < least:
            least, best = moved, chain
    return best


def _moved(partition: Partition, group: Group, op: Op, chain: Sequence[Op], readers: set[Group]) -> float:
    """Bytes that readers read of what a chain is made of, and the group stores of it; infinite where that is larger."""
    inside = set(chain)
    leaves = {v for o in chain for v in partition.sources(o) if partition.producers.get(v) not in inside}
    if any(v.type.most > op.result.type.size for v in leaves):
        return inf
    again = 0
    for reader in readers:
        known = {v for o in reader.ops for v in partition.sources(o)}
        again += sum(_bytes(v) for v in leaves - known)
    return again + sum(_bytes(v) for v in leaves if partition.producers.get(v) in group.ops)


def _bytes(value: Value) -> int:
    return value.type.most * value.type.dtype.itemsize
