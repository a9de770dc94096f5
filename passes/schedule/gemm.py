"""Schedules of matrix products on a CPU: tiles for the caches, register tiles for the vector unit."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.tile.nodes import RegisterTile


@dataclass(frozen=True)
class GemmSchedule:
    """Tile sizes of one product of M by K with K by N.

    tile_m: rows of the left operand that a task keeps in L2. block_n: columns of one task.
    tile_n: columns of one accumulator tile, in L1. tile_k: how much of K is packed and multiplied at a time.
    registers: the accumulators. pack_left: copy the left rows to scratch (else read them in place).

    With ``registers.along`` both operands are read along K. narrow: they keep their type, which the target multiplies.
    staged: a right operand without batch axes, too, is read by each task where it lies, or copied to its scratch; else
    a kernel of its own packs it.
    """

    tile_m: int
    block_n: int
    tile_n: int
    tile_k: int
    registers: RegisterTile
    pack_left: bool
    narrow: bool = False
    staged: bool = False

    @property
    def reads_once(self) -> bool:
        """Whether a task needs its panels once, sums of all of its rows being in registers, and fetches them ahead."""
        return self.registers.ahead > 0 and self.tile_m <= self.registers.rows

    def k_splits(self, k: int) -> int:
        """In how many pieces K is packed and multiplied."""
        return max(1, -(-k // self.tile_k))

    def describe(self) -> tuple[tuple[str, int | str], ...]:
        """The sizes by name, for dumps."""
        r = self.registers
        return (
            ("tile_m", self.tile_m),
            ("block_n", self.block_n),
            ("tile_n", self.tile_n),
            ("tile_k", self.tile_k),
            ("registers", f"{r.rows}x{r.columns}{' along' if r.along else ''}"),
            ("pack_left", int(self.pack_left)),
        )
