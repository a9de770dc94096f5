"""Matmuls whose left operand shows windows of an image: read where they lie, or packed in whole runs of them."""

from __future__ import annotations

import pytest
from convolutions import convolution
from fixed_schedule import Fixed
from programs import Run, check

from fusec.ir.graph import FusedAttributes
from fusec.ir.parse import parse
from fusec.ir.types import contiguous_strides
from fusec.passes.families.gemm.cpu import SHORTEST_RUN, in_runs
from fusec.passes.families.gemm.cpu_candidates import gemm_schedules, shows_windows
from fusec.passes.families.gemm.schedule.cpu import GemmSchedule
from fusec.passes.lower.context import LoweringContext, address_step
from fusec.passes.pipeline import lower
from fusec.target.cpu import cpu_target
from fusec.tile.nodes import Alloc, Dot, Map, Store, statements
from fusec.tile.nodes import RegisterTile as Tile

HOST = cpu_target()


def run(text: str, schedule: GemmSchedule | None = None) -> Run:
    selector = None if schedule is None else Fixed(HOST, 2, {}, schedule)
    return check(text, selector=selector, slack=4)


def left_buffers(made: Run) -> set[str]:
    """In what memory the left operands of products lie."""
    found = [s for k in made.lowered.program.kernels for s in statements(k.body) if isinstance(s, Dot)]
    assert found
    return {dot.a.buffer.space for dot in found}


def packs_of_left(made: Run) -> list[Map]:
    body = [s for k in made.lowered.program.kernels if k.kind == "gemm" for s in statements(k.body)]
    tiles = {s.buffer for s in body if isinstance(s, Alloc) and s.buffer.name.startswith("left")}
    return [s for s in body if isinstance(s, Map) and s.target in tiles]


IN_PLACE = {
    "3x3": convolution((2, 6, 7, 16), 20, (3, 3), padding=(1, 1)),
    "stride and padding": convolution((2, 9, 8, 16), 20, (3, 5), stride=(2, 1), padding=(0, 2)),
    "weights in PyTorch's order": convolution((2, 6, 7, 16), 20, (3, 3), last=False),
    "dilated": convolution((1, 9, 9, 16), 20, (3, 3), dilation=(2, 3)),
    "few channels, long rows": convolution((1, 12, 12, 3), 20, (7, 7), stride=(2, 2), padding=(3, 3)),
    "dilated signals": convolution((3, 40, 16), 20, (5,), dilation=(2,), padding=(2,)),
    "volumes": convolution((1, 5, 6, 7, 16), 20, (2, 3, 2)),
    "f64": convolution((2, 6, 7, 16), 20, (3, 3), padding=(1, 1), dtype="f64"),
    "odd channels": convolution((2, 6, 7, 17), 20, (3, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_windows_are_read_where_they_lie(name: str) -> None:
    made = run(IN_PLACE[name])
    assert left_buffers(made) == {"parameter"}
    assert not packs_of_left(made)


PACKED = {
    "short rows": (convolution((2, 6, 7, 3), 20, (3, 3), padding=(1, 1)), 3),
    "few channels, dilated": (convolution((1, 9, 9, 5), 20, (3, 3), dilation=(1, 2)), 5),
    "halves": (convolution((2, 6, 7, 16), 20, (3, 3), padding=(1, 1), dtype="f16"), 16),
}


@pytest.mark.parametrize("name", PACKED)
def test_others_are_packed_in_runs(name: str) -> None:
    """The innermost iterator goes along what lies side by side."""
    text, within = PACKED[name]
    made = run(text)
    assert left_buffers(made) == {"tile"}
    (pack,) = packs_of_left(made)
    assert [i.extent for i in pack.domain[1:]] == [9, within]


def test_an_image_in_pytorch_s_order_is_packed() -> None:
    """Channels are then far apart: it is put in a frame of zeros with them last, and read where it lies; without the
    frame it is packed."""
    assert left_buffers(run(convolution((2, 6, 7, 16), 20, (3, 3), padding=(1, 1), image_last=False))) == {"parameter"}
    assert left_buffers(run(convolution((2, 6, 7, 16), 20, (3, 3), image_last=False))) == {"tile"}


def test_a_part_of_k_at_a_time_is_packed() -> None:
    text = convolution((2, 6, 7, 16), 20, (3, 3), padding=(1, 1))
    whole, parts = (GemmSchedule(12, 32, 16, depth, Tile(6, 16), True) for depth in (144, 50))
    assert left_buffers(run(text, whole)) == {"parameter"}
    assert left_buffers(run(text, parts)) == {"tile"}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [1, 4, 6, 14])
@pytest.mark.parametrize("tile_m", [1, 5, 84])
def test_any_block_of_rows(rows: int, tile_m: int) -> None:
    schedule = GemmSchedule(tile_m, 32, 16, 144, Tile(min(rows, tile_m), 16), True)
    assert left_buffers(run(IN_PLACE["3x3"], schedule)) == {"parameter"}


@pytest.mark.parametrize(
    ("inner", "depth", "runs"),
    [
        ((3, 3, 16), 144, (9, 16)),
        ((3, 3, 16), 48, (3, 16)),
        ((3, 3, 16), 50, None),
        ((3, 3, 1), 9, None),
        ((), 1, None),
    ],
)
def test_runs(inner: tuple[int, ...], depth: int, runs: tuple[int, int] | None) -> None:
    found = in_runs(inner, depth)
    assert (found and tuple(i.extent for i in found[0])) == runs


def context_of(text: str) -> LoweringContext:
    graph = lower(parse(text), "cpu").graph
    (op,) = (o for o in graph.ops if isinstance(o.attributes, FusedAttributes) and o.attributes.kind == "gemm")
    return LoweringContext(op, {v: contiguous_strides(v.type.static_shape) for v in (*op.operands, *op.results)}, "g")


MATMUL = """graph @g(%x: f32[64, 144], %w: f32[144, 64]) {
  %y = dot(%x, %w) {contract=[1]x[0]} : f32[64, 64]
  return %y
}"""


def test_what_shows_windows() -> None:
    assert shows_windows(context_of(IN_PLACE["3x3"]))
    assert shows_windows(context_of(PACKED["short rows"][0]))
    assert not shows_windows(context_of(MATMUL))
    assert not shows_windows(context_of(convolution((2, 6, 7, 16), 20, (1, 1), stride=(2, 2))))


def test_windows_are_not_read_along_k() -> None:
    found = gemm_schedules(context_of(convolution((4, 28, 28, 64), 64, (3, 3))), HOST, 2)
    assert not any(s.registers.along for s in found)


DEEP = {
    "a block is part of a run": convolution((1, 5, 6, 128), 20, (3, 3), padding=(1, 1)),
    "a block is a run": convolution((1, 5, 6, 32), 20, (3, 3), padding=(1, 1)),
    "runs of an odd length": convolution((1, 5, 6, 67), 20, (3, 3), padding=(1, 1)),
    "a dilated row": convolution((1, 9, 9, 256), 20, (3, 3), dilation=(2, 2)),
}


@pytest.mark.parametrize("name", DEEP)
def test_addresses_of_a_block_are_evenly_spaced(name: str) -> None:
    """Else each step of a product divides to find its place: 1.4 times the time for 3×3/2 of 96 channels."""
    made = run(DEEP[name])
    dots = [s for k in made.lowered.program.kernels for s in statements(k.body) if isinstance(s, Dot)]
    assert {address_step(dot.a, dot.k.var) for dot in dots} == {1}
    assert {dot.k.extent <= 192 for dot in dots} == {True}


def test_sibling_products_of_the_same_windows() -> None:
    """Each one's sums begin at zero, and a store that needs one of them waits for no other."""
    text = convolution((1, 5, 6, 64), 20, (3, 3), padding=(1, 1))
    (line,) = (x for x in text.splitlines() if "= dot(" in x)
    weights = text.split("%w: ", 1)[1].split(")", 1)[0]
    second = line.replace("%h", "%v").replace("%w", "%u")
    text = text.replace(line, f"{line}\n{second}").replace(weights, f"{weights}, %u: {weights}", 1)
    made = run(text.replace("return %y", "return %y, %v"))
    dots = [
        s for k in made.lowered.program.kernels if k.kind == "gemm" for s in statements(k.body) if isinstance(s, Dot)
    ]
    assert len(dots) == 2
    assert len({dot.accumulator.buffer for dot in dots}) == 2


def test_the_shortest_run() -> None:
    """Places of a row of windows times channels."""
    for channels in (SHORTEST_RUN // 3, SHORTEST_RUN // 3 + 1):
        made = run(convolution((2, 6, 7, channels), 20, (3, 3)))
        assert left_buffers(made) == {"parameter" if 3 * channels >= SHORTEST_RUN else "tile"}


WEIGHTS = {
    "of PyTorch, by channel and then by place": (False, [16 * 3 * 5]),
    "with channels last": (True, [3 * 5 * 16]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_packed_in_the_order_of_memory(name: str) -> None:
    """Axes that follow each other in memory are one loop, whose vectors are transposed."""
    channels_last, steps = WEIGHTS[name]
    text = convolution((2, 20, 20, 16), 32, (3, 5), last=channels_last)
    made = run(text, GemmSchedule(84, 32, 16, 240, Tile(6, 16), True))
    (kernel,) = (k for k in made.lowered.program.kernels if k.kind == "pack")
    (store,) = (s for s in statements(kernel.body) if isinstance(s, Store))
    assert [i.extent for i in store.domain[:-1]] == steps


@pytest.mark.sweep(1)
@pytest.mark.parametrize("columns", [16, 20, 48])
@pytest.mark.parametrize("last", [False, True])
def test_columns_are_put_in_order_by_the_task_that_multiplies_them(last: bool, columns: int) -> None:
    text = convolution((2, 6, 7, 16), columns, (3, 3), padding=(1, 1), last=last)
    made = run(text, GemmSchedule(84, 16, 16, 144, Tile(6, 16), True, staged=True))
    assert not [k for k in made.lowered.program.kernels if k.kind == "pack"]


def test_few_rows_of_many_weights_are_staged() -> None:
    """Unless a panel of them does not fit into a core's cache, or packing is little beside multiplying."""

    def first(image: tuple[int, ...], columns: int) -> bool:
        return gemm_schedules(context_of(convolution(image, columns, (3, 3), last=False)), HOST, 2)[0].staged

    assert first((1, 9, 9, 256), 256)
    assert not first((16, 58, 58, 32), 32)
    assert not first((1, 9, 9, 16384), 64)
