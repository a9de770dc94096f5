"""A few places of an input are written where they are; all else that a call changes is copied at its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import fusec

torch = pytest.importorskip("torch")

Function = Callable[..., Any]


def one_place(cache: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(1, at, new)
    return cache.sum(-1)


def by_subscript(cache: Any, at: Any, new: Any) -> Any:
    cache[:, at] = new
    return cache * 2


def added(cache: Any, at: Any, new: Any) -> Any:
    cache.index_add_(1, at, new)
    return cache.amax(0)


def accumulated(cache: Any, at: Any, new: Any) -> Any:
    cache.index_put_((torch.zeros_like(at), at), new[0], accumulate=True)
    return cache.amax(0)


def twice(cache: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(1, at, new)
    cache.index_copy_(1, at + 1, new * 2)
    return cache.sum(-1)


def read_before(cache: Any, at: Any, new: Any) -> Any:
    before = cache.sum(-1)
    cache.index_copy_(1, at, new)
    return before + cache.sum(-1)


def read_for_it(cache: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(1, at, new + cache.sum())
    return cache.sum(-1)


def given_back(cache: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(1, at, new)
    return cache, cache.sum()


def old_read_after(cache: Any, at: Any, new: Any) -> Any:
    other = torch.index_put(cache, (torch.zeros_like(at), at), new[0])
    total = torch.relu(cache) + other
    cache.copy_(other)
    return total


def old_returned(cache: Any, at: Any, new: Any) -> Any:
    old = cache.clone()
    cache.index_copy_(1, at, new)
    return old


def step_between_read(cache: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(1, at, new)
    between = cache.clone()
    cache.index_copy_(1, at + 1, new * 2)
    return between + cache


WRITTEN = {one_place: 1, by_subscript: 1, added: 1, accumulated: 1, twice: 2, read_for_it: 1, given_back: 1}
COPIED = (read_before, old_read_after)


def arguments(places: int = 2) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    cache, new = torch.randn(3, 9, 4, generator=generator), torch.randn(3, places, 4, generator=generator)
    return cache, torch.tensor([5, 1][:places]), new


def check(function: Function, args: tuple[Any, ...], times: int = 2) -> str:
    """Compares some calls with eager ones; the code of a call."""
    ours, theirs = [[a.clone() for a in args] for _ in range(2)]
    compiled = fusec.jit(function)
    for _ in range(times):
        torch.testing.assert_close(compiled(*ours), function(*theirs))
        torch.testing.assert_close(ours, theirs)
    return str(fusec.compile(function, *args).only.executable.source)


@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f.__name__)
def test_written_where_it_is(function: Function) -> None:
    source = check(function, arguments())
    assert "copy_(" not in source.replace("index_copy_(", "")
    assert len(re.findall(r"made\d+ = \w*(?:_put_|_copy_|_add_)", source)) == WRITTEN[function], source


@pytest.mark.parametrize("function", COPIED, ids=lambda f: f.__name__)
def test_copied_where_what_was_there_is_read_afterwards(function: Function) -> None:
    assert ".copy_(" in check(function, arguments())


@pytest.mark.parametrize("function", [old_returned, step_between_read], ids=lambda f: f.__name__)
def test_what_was_there_is_kept(function: Function) -> None:
    check(function, arguments())


def in_a_layer(cache: Any, at: Any, new: Any) -> Any:
    cache[1].index_copy_(0, at, new[1])
    return cache[1].sum(-1)


def in_a_layer_by_subscript(cache: Any, at: Any, new: Any) -> Any:
    cache[2, at] = new[0]
    return cache * 2


def in_a_view_read_later(cache: Any, at: Any, new: Any) -> Any:
    layer = cache[1]
    layer[at - 9] = new[1]
    layer[at - 1] = new[2] * 2
    return layer.sum(-1), cache.amax(0)


def in_columns(cache: Any, at: Any, new: Any) -> Any:
    cache[1:, :, 1:3].index_copy_(1, at, new[1:, :, :2])
    return cache.sum(1)


def in_part_of_the_axis(cache: Any, at: Any, new: Any) -> Any:
    cache[:, 2:7].index_copy_(1, at - 3, new)
    return cache.sum(1)


LAYERS = (in_a_layer, in_a_layer_by_subscript, in_a_view_read_later, in_columns)


@pytest.mark.parametrize("function", [*LAYERS, in_part_of_the_axis], ids=lambda f: f.__name__)
@pytest.mark.parametrize("places", [1, 2])
def test_in_a_box(function: Function, places: int) -> None:
    cache, at, new = arguments(places)
    if function is in_part_of_the_axis:
        at = at % 5 + 3
    source = check(function, (cache, at, new))
    if places == 1 and function in LAYERS:
        assert "index_copy" not in source
        assert "index_put" not in source
        assert "copy_(" not in source


@pytest.mark.parametrize("function", LAYERS, ids=lambda f: f.__name__)
def test_a_box_where_what_was_there_is_read(function: Function) -> None:
    def beside(cache: Any, at: Any, new: Any) -> Any:
        before = torch.relu(cache)
        found = function(cache, at, new)
        return found, before.sum()

    check(beside, arguments(1))
    wrong = arguments(1)[0], torch.tensor([18]), arguments(1)[2]
    with pytest.raises(IndexError):
        fusec.jit(function)(*wrong)
    assert torch.equal(wrong[0], arguments(1)[0])


@pytest.mark.parametrize("function", [one_place, by_subscript, twice, read_for_it], ids=lambda f: f.__name__)
def test_one_place_is_written_by_a_kernel(function: Function) -> None:
    source = check(function, arguments(1))
    assert "index_copy" not in source
    assert "index_put" not in source
    assert "copy_(" not in source


@pytest.mark.parametrize("function", [given_back, *COPIED, old_returned, step_between_read], ids=lambda f: f.__name__)
def test_one_place_where_what_was_there_is_read_or_given_back(function: Function) -> None:
    check(function, arguments(1))


def test_one_place_of_memory_that_is_turned_or_has_gaps() -> None:
    cache, at, new = arguments(1)
    for strided in (cache.transpose(0, 2).contiguous().transpose(0, 2), torch.randn(3, 18, 8)[:, ::2, 3:7]):
        assert "index_copy" not in check(one_place, (strided, at, new))
        check(by_subscript, (strided, at - 9, new))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "bool", "complex64"])
def test_one_place_of_other_types(dtype: str) -> None:
    cache, at, new = arguments(1)
    kind = getattr(torch, dtype)

    def write(cache: Any, at: Any, new: Any) -> Any:
        cache.index_copy_(1, at, new)
        return at + 1

    check(write, (cache.to(kind), at, new.to(kind)))


def scores_in_place(cache: Any, at: Any, x: Any, weight: Any) -> Any:
    """A product whose result lies in the cache, and a softmax beside it."""
    cache.index_copy_(0, at, torch.relu(x @ weight))
    return torch.softmax(x, -1) @ cache.T


def normed_in_place(cache: Any, at: Any, x: Any, weight: Any) -> Any:
    cache[at] = torch.softmax(x, -1)
    return cache @ weight


@pytest.mark.parametrize("function", [scores_in_place, normed_in_place], ids=lambda f: f.__name__)
@pytest.mark.parametrize("computed", [False, True])
def test_products_and_rows_at_a_place(function: Function, computed: bool) -> None:
    """``computed``: the position is made in the call."""

    def at_a_computed_place(cache: Any, at: Any, x: Any, weight: Any) -> Any:
        return function(cache, (at * 3 + x.argmax(-1)) % 7, x, weight)

    generator = torch.Generator().manual_seed(0)
    cache, x, weight = (torch.randn(*shape, generator=generator) for shape in ((7, 48), (1, 48), (48, 48)))
    called = at_a_computed_place if computed else function
    check(called, (cache, torch.tensor([4]), x, weight))
    check(called, (cache.bfloat16(), torch.tensor([6]), x.bfloat16(), weight.bfloat16()))


def test_turned_memory_is_copied() -> None:
    cache, at, new = arguments()
    check(one_place, (cache.transpose(0, 2).contiguous().transpose(0, 2), at, new))


def test_half_types_and_no_places() -> None:
    cache, at, new = arguments()
    check(one_place, (cache.bfloat16(), at, new.bfloat16()))
    check(one_place, (cache, at[:0], new[:, :0]))


def test_an_index_out_of_range_is_an_error() -> None:
    cache, _, new = arguments()
    before = cache.clone()
    for wrong in (9, -1):
        with pytest.raises(IndexError):
            fusec.jit(one_place)(cache, torch.tensor([1, wrong]), new)
        with pytest.raises(IndexError):
            fusec.jit(one_place)(before, torch.tensor([wrong]), new[:, :1])
        assert torch.equal(before, arguments()[0])


@pytest.mark.parametrize("places", [1, 2])
def test_saved_and_loaded(tmp_path: Any, places: int) -> None:
    cache, at, new = arguments(places)
    fusec.compile(one_place, cache, at, new).save(tmp_path / "cache.fusec")
    ours, theirs = cache.clone(), cache.clone()
    loaded = fusec.load(tmp_path / "cache.fusec")
    torch.testing.assert_close(loaded(ours, at, new), one_place(theirs, at, new))
    assert torch.equal(ours, theirs)


def copied(cache: Any, at: Any, new: Any) -> Any:
    return cache.index_copy_(0, at, new)


def summed(cache: Any, at: Any, new: Any) -> Any:
    return cache.index_add_(0, at, new)


def filled(cache: Any, at: Any, new: Any) -> Any:
    return cache.index_fill_(0, at, 2.0)


@pytest.mark.parametrize("function", [copied, summed, filled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("at", [[-1, 2], [3, -9], [8, 0], [-1], [8], [3]], ids=str)
@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_the_indices_that_eager_takes(function: Function, at: list[int], kind: str) -> None:
    """Negative indices and narrow ones are errors of some of these functions, and nothing is written then."""
    ours, theirs, new = torch.zeros(8, 4), torch.zeros(8, 4), torch.ones(len(at), 4)
    indices = torch.tensor(at, dtype=getattr(torch, kind))
    try:
        function(theirs, indices, new)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)):
            fusec.jit(function)(ours, indices, new)
    else:
        fusec.jit(function)(ours, indices, new)
    assert torch.equal(ours, theirs)


def read_too(cache: Any, other: Any, at: Any, new: Any) -> Any:
    cache.index_copy_(0, at, new)
    return other * 2, cache.sum()


def test_memory_that_another_argument_shares() -> None:
    """What a call finds shared need not have been so when the function was compiled."""
    compiled = fusec.jit(read_too)
    at, new = torch.tensor([3]), torch.ones(1, 4)
    for shared in (False, True, True, False):
        given = []
        for function in (compiled, read_too):
            cache = torch.arange(32.0).view(8, 4)
            other = cache[2:4] if shared else cache[2:4].clone()
            given.append((function(cache, other, at, new), cache))
        torch.testing.assert_close(given[0], given[1])


def lowered(x: Any) -> Any:
    return x.sub_(x.amax(-1, keepdim=True)).amin(-1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_large_rows_apart(dtype: str) -> None:
    """What is made of rows with gaps between them has the gaps too, in memory of the pool."""
    ours = torch.randn(300, 515, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    theirs = ours.clone()
    assert torch.equal(fusec.jit(lowered)(ours[:, :512]), lowered(theirs[:, :512]))
    assert torch.equal(ours, theirs)


def one_slice(cache: Any, new: Any) -> Any:
    cache[:, 3:5] = new
    return cache.sum(-1)


def slices(cache: Any, new: Any) -> Any:
    cache[1, :2] = new[0]
    cache[:, -1, 1:] = torch.relu(new[:, 0, 1:])
    cache[0, 3, 2] = 7.0
    cache.transpose(0, 1)[6:8, 2] = new[1]
    return cache


def read_by_what_is_written(cache: Any, new: Any) -> Any:
    weights = torch.softmax(new @ cache.transpose(1, 2), -1)
    cache[:, 3:5] = weights @ cache
    return cache * 2


def shifted(cache: Any, new: Any) -> Any:
    cache[:, 1:] = cache[:, :-1] + new[:, :1]
    return cache


def added_to_a_slice(cache: Any, new: Any) -> Any:
    cache[:, 3:5] += new
    return cache.sum()


def sum_before(cache: Any, new: Any) -> Any:
    before = cache.sum(-1)
    cache[:, 3:5] = new
    return before


SLICED = {one_slice: True, slices: True, read_by_what_is_written: True, shifted: True, sum_before: False}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("function", [*SLICED, added_to_a_slice], ids=lambda f: f.__name__)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slices(function: Function, turned: bool, dtype: str) -> None:
    check_slices(function, turned, dtype)


def test_slices_of_narrow_elements() -> None:
    check_slices(slices, turned=False, dtype="bfloat16")
    check_slices(slices, turned=True, dtype="int8")


def check_slices(function: Function, turned: bool, dtype: str) -> None:
    cache, _, new = (a.to(getattr(torch, dtype)) if a.is_floating_point() else a for a in arguments())
    if turned:
        cache = cache.transpose(0, 2).contiguous().transpose(0, 2)
    ours, theirs = cache.clone(), cache.clone()
    compiled = fusec.jit(fallback="error")(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(ours, new), function(theirs, new))
        torch.testing.assert_close(ours, theirs)
    source = str(fusec.compile(function, cache, new).only.executable.source)
    if function in SLICED:
        assert ("copy_(" not in source) == SLICED[function], source


def test_kernels_write_into_gaps_of_no_other_memory() -> None:
    """A view of a larger tensor: what lies around it stays as it was."""
    memory = torch.arange(400.0).reshape(20, 20)
    before = memory.clone()
    fusec.jit(fallback="error")(one_slice)(memory[2:11, 3:13][None], torch.ones(1, 2, 10))
    before[5:7, 3:13] = 1
    assert torch.equal(memory, before)


class Kept(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(96, 64))
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        before = x @ self.kept.T
        self.kept[2:3] = self.linear(x)[:1] + before.sum()
        return before, x @ self.kept.T


def test_what_is_packed_from_a_written_buffer_is_packed_anew() -> None:
    ours, theirs = Kept().requires_grad_(False), Kept().requires_grad_(False)
    theirs.load_state_dict(ours.state_dict())
    compiled = fusec.jit(fallback="error")(ours)
    reader = fusec.jit(lambda x: x @ ours.kept.T)
    for _ in range(3):
        x = torch.randn(64, 64)
        version = ours.kept._version
        torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-4, atol=1e-3)
        assert ours.kept._version > version
        torch.testing.assert_close(reader(x), x @ theirs.kept.T, rtol=1e-4, atol=1e-3)


def raises_before(cache: Any, rows: Any, at: Any, new: Any) -> Any:
    made = new @ new.T
    picked = rows[at * 2]
    cache[2:6, :4] = made
    return picked.sum()


def raises_between(cache: Any, rows: Any, at: Any, new: Any) -> Any:
    cache[0] = new[0] + 1
    picked = rows[at * 2]
    cache[2:6, :4] = new @ new.T
    return picked.sum() + cache.sum()


def needs_what_is_written(cache: Any, rows: Any, at: Any, new: Any) -> Any:
    made = torch.relu(new)
    cache[2:6] = made
    return rows[made.argmax(1) + at[0] // 4 * 100]


def call_needs_the_kernel_that_writes(cache: Any, rows: Any, at: Any, new: Any) -> Any:
    made = new + 1
    picked = rows[(made[:, 0] * 0).long() + at[0]]
    cache[2:6] = made
    return picked


@pytest.mark.parametrize(
    "function",
    [raises_before, raises_between, needs_what_is_written, call_needs_the_kernel_that_writes],
    ids=lambda f: f.__name__,
)
def test_a_call_that_raises_writes_no_more_than_eager(function: Function) -> None:
    compiled = fusec.jit(fallback="error")(function)
    rows, new = torch.randn(9, 3), torch.randn(4, 8)
    for first in (0, 77, 1):
        at = torch.tensor([first, 1])
        ours, theirs = torch.zeros(8, 8), torch.zeros(8, 8)
        if first < 4:
            torch.testing.assert_close(compiled(ours, rows, at, new), function(theirs, rows, at, new))
            torch.testing.assert_close(ours, theirs)
            continue
        with pytest.raises(IndexError):
            function(theirs, rows, at, new)
        with pytest.raises(IndexError):
            compiled(ours, rows, at, new)
        written = ours != 0
        torch.testing.assert_close(ours[written], theirs[written])


def test_what_a_call_writes_where_it_reads_is_left_to_the_library() -> None:
    """The result depends on the order in which the library takes the places."""

    def from_itself(cache: Any, at: Any) -> Any:
        cache.index_copy_(1, at, cache[:, : len(at)])
        return cache + 1

    cache, at, _ = arguments()
    compiled = fusec.jit(from_itself)
    expected = cache.clone()
    torch.testing.assert_close(compiled(cache, at), from_itself(expected, at))
    torch.testing.assert_close(cache, expected)
    assert any("reads memory that it also writes" in reason for reason in compiled.dispatcher.eager_calls)
