"""What eager raises is raised, at any place of the code, and what was written before it stays written."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aliasing import check, outcome

import fusec
from fusec.notices import InternalErrorWarning

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
OUT = torch.tensor([5])


def write_then_index(x: Any, i: Any) -> Any:
    x.add_(1)
    return x[i]


def index_then_write(x: Any, i: Any) -> Any:
    y = x[i]
    x.add_(1)
    return y


def index_in_vain(x: Any, i: Any) -> Any:
    x[i]
    return x + 1


def between_writes(x: Any, i: Any) -> Any:
    x.add_(1)
    u = x[0]
    x.index_select(0, i)
    u.mul_(2)
    return x.sum()


def of_no_elements(x: Any, i: Any) -> Any:
    return x[i][:0], torch.where(torch.tensor(True), x, x[i].sum())


def embed_what_is_written(x: Any, i: Any) -> Any:
    x[0] = 7
    return F.embedding(i, x), x.view(-1)


def gather_in_vain(x: Any, i: Any) -> Any:
    x.gather(0, i[None].expand(1, 3))
    torch.gather(x, 0, i[None].expand(1, 3))
    return x


def place_by_index(x: Any, i: Any) -> Any:
    x.mul_(2)
    x[torch.zeros_like(i)] = 3.0
    x[i] = 4.0
    x.add_(1)
    return x * 2


def scatter(x: Any, i: Any) -> Any:
    x.add_(1)
    return x.scatter(0, i[None].expand(1, 3), 1.0)


def take(x: Any, i: Any) -> Any:
    return x.take(i + 20), x + 1


def write_through_a_view(x: Any, i: Any) -> Any:
    z = x[0]
    z.copy_(z.sum())
    y = x.view(-1)
    y += y
    y[i + 7] = x.sum()
    return y


def write_two(x: Any, i: Any) -> Any:
    i.mul_(2)
    x.add_(1)
    x[i] = 3.0
    return x


def place_beside_others(x: Any, i: Any) -> Any:
    x.copy_(x.sum())
    i.index_fill_(0, i - 4, 1)
    return x


def classes(x: Any, i: Any) -> Any:
    F.one_hot(i, 3)
    return x


INDEXED = [
    *(write_then_index, index_then_write, index_in_vain, between_writes, of_no_elements, embed_what_is_written),
    *(write_through_a_view, write_two, place_beside_others),
    *(gather_in_vain, place_by_index, scatter, take, classes),
]


ALWAYS = (take, write_through_a_view, write_two, place_beside_others)
"""They raise for 1, too."""


@pytest.mark.parametrize("function", INDEXED, ids=lambda f: f.__name__)
def test_an_index_out_of_range(function: Any) -> None:
    check(function, X, OUT, captured=False)


@pytest.mark.parametrize("function", [f for f in INDEXED if f not in ALWAYS], ids=lambda f: f.__name__)
def test_an_index_in_range(function: Any) -> None:
    check(function, X, torch.tensor([1]))


@pytest.mark.parametrize("function", INDEXED, ids=lambda f: f.__name__)
def test_a_compiled_program_raises_too(function: Any) -> None:
    """The first call is in range; the call that is not runs the same program."""
    compiled = fusec.jit(function)
    with torch.no_grad():
        if function not in ALWAYS:
            compiled(X.clone(), torch.tensor([1]))
        ours, theirs = X.clone(), X.clone()
        with pytest.raises((IndexError, RuntimeError)) as expected:
            function(theirs, OUT)
        with pytest.raises(type(expected.value), match=r"out of|smaller than"):
            compiled(ours, OUT)
    assert torch.equal(ours, theirs)


NUMBERS = torch.tensor([4, 5])
ZEROS = torch.tensor([2, 0])
INTEGERS = {
    "floor_divide, in vain": lambda a, b: (a.add_(1), a // b, a + 1)[2],
    "remainder": lambda a, b: (a % b, a.zero_())[0],
    "fmod": torch.fmod,
    "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "by a number": lambda a, b: a // 0,
    "power": lambda a, b: a**-1,
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    check(INTEGERS[name], NUMBERS, ZEROS, captured=False)


DATA = {
    "inv": lambda x: torch.linalg.inv(x),
    "inv, in vain": lambda x: (torch.linalg.inv(x), x.add_(1))[1],
    "inv of what is written": lambda x: torch.linalg.inv(x.add_(0)),
    "cholesky": lambda x: torch.linalg.cholesky(x),
    "solve": lambda x: torch.linalg.solve(x, x),
    "matrix_power": lambda x: torch.linalg.matrix_power(x, -2),
    "assert": lambda x: (torch._assert_async(x.sum() > 1), x + 1)[1],
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x - 1, x),
    "bernoulli": lambda x: torch.bernoulli(x - 1),
    "multinomial": lambda x: torch.multinomial(x, 1),
}


@pytest.mark.parametrize("name", DATA)
def test_what_a_tensor_holds(name: str) -> None:
    check(DATA[name], torch.zeros(3, 3), captured=False)


def test_a_random_call_in_vain_still_draws() -> None:
    def f(x: Any) -> Any:
        torch.rand(3)
        return x + torch.rand(3)

    torch.manual_seed(0)
    expected = f(torch.zeros(3))
    torch.manual_seed(0)
    torch.testing.assert_close(fusec.jit(f)(torch.zeros(3)), expected)


DTYPES = {
    "celu": (F.celu, torch.int64),
    "softplus": (F.softplus, torch.bool),
    "relu": (torch.relu, torch.uint16),
    "relu of bool": (torch.relu, torch.bool),
    "logaddexp": (lambda x: torch.logaddexp(x, x), torch.int32),
    "fmax": (lambda x: torch.fmax(x, x), torch.uint32),
    "ge": (lambda x: x >= x, torch.uint64),
    "aminmax": (lambda x: torch.aminmax(x), torch.complex64),
    "addmm": (lambda x: torch.addmm(x, x, x, beta=0.5), torch.int64),
    "in place": (lambda x: x.relu_(), torch.uint16),
    "interpolate": (lambda x: F.interpolate(x[None, None], size=(3, 3)), torch.int32),
    "one_hot": (lambda x: F.one_hot(x, 3), torch.int32),
    "unfold": (lambda x: F.unfold(x[None, None], 2), torch.int64),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), torch.bool),
    "mish": (F.mish, torch.int64),
    "round": (lambda x: torch.round(x, decimals=2), torch.int64),
    "argmax": (torch.argmax, torch.bool),
    "subtracted": (F.tanhshrink, torch.bool),
    "of no elements": (lambda x: torch.logaddexp(x[:0], x[:0]), torch.int64),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_that_the_library_refuses(name: str) -> None:
    function, dtype = DTYPES[name]
    check(function, torch.ones(2, 2).to(dtype), captured=False)


OVERLAPS = {
    "rows": lambda x: x[1:].copy_(x[:-1]),
    "assigned": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "added": lambda x: x[1:].add_(x[:-1]),
    "a row": lambda x: x.sub_(x[0]),
    "out": lambda x: torch.add(x[1:], 1, out=x[:-1]),
    "columns, in any order": lambda x: x[:, 1:].mul_(x[:, :-1]),
    "index_copy": lambda x: x.index_copy_(0, torch.tensor([1]), x[:1]),
    "expanded": lambda x: x[:1].expand(3, 4).add_(1),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_writes_to_what_is_read(name: str) -> None:
    check(OVERLAPS[name], torch.arange(12.0).view(3, 4), captured=False)


APART = {
    "itself": lambda x: x.mul_(x),
    "columns": lambda x: x[:, 0].add_(x[:, 1]),
    "every second": lambda x: x[:, ::2].copy_(x[:, 1::2]),
    "turned": lambda x: x[:, :3].copy_(x[:, :3].t().clone()),
}


@pytest.mark.parametrize("name", APART)
def test_writes_beside_what_is_read_are_captured(name: str) -> None:
    check(APART[name], torch.arange(12.0).view(3, 4))


def test_a_call_that_gives_another_shape_than_captured_is_an_error() -> None:
    from fusec.errors import FusecError
    from fusec.ir.attributes import ExternAttributes
    from fusec.ir.types import TensorType, f32
    from fusec.runtime.library import prepare

    call = prepare(ExternAttributes("aten.nansum.default", "($0, []), {}", (TensorType(f32, (2, 3)),)))
    with pytest.raises(FusecError, match=r"aten.nansum.default gave \[\], f32\[2, 3\] were captured"):
        call(X)


REDUCTIONS = (
    *("sum", "nansum", "mean", "nanmean", "prod", "amax", "amin", "std", "var", "any", "all", "logsumexp", "norm"),
    *("count_nonzero", "median", "argmax", "std_mean"),
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dim", [(), None, (0,), (1, 0), (-1,), 0, (2,), (0, 0)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_dimensions_of_reductions(name: str, dim: Any, keepdim: bool) -> None:
    def f(x: Any) -> Any:
        found = getattr(torch, name)(x, dim=dim, **({"keepdim": True} if keepdim else {}))
        return [part * 2 for part in found] if isinstance(found, tuple) else found * 2

    check(f, torch.where(X > 1, torch.nan, X), captured=False)


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_truth_of_no_dimensions_is_that_of_each_element(name: str, keepdim: bool) -> None:
    check(lambda x: getattr(torch, name)(x, dim=(), keepdim=keepdim), torch.arange(6.0).view(2, 3))


OUTS = {
    "argmin": (lambda x, out: torch.argmin(x, 0, out=out), torch.int32),
    "all": (lambda x, out: torch.all(x, 0, out=out), torch.float32),
    "all, as uint8": (lambda x, out: torch.all(x, 0, out=out), torch.uint8),  # gives other numbers
    "sum": (lambda x, out: torch.sum(x, 0, out=out), torch.int64),  # is computed in that dtype
    "prod": (lambda x, out: torch.prod(x, 0, out=out), torch.float64),
    "index": (lambda x, out: torch.max(x, 0, out=(torch.zeros(3), out)), torch.int32),
    "ceil": (lambda x, out: torch.ceil(x[0], out=out), torch.float64),
    "signbit": (lambda x, out: torch.signbit(x[0], out=out), torch.float32),
    "float_power": (lambda x, out: torch.float_power(x[0], 2.0, out=out), torch.float32),
    "index_select": (lambda x, out: torch.index_select(x[0], 0, torch.arange(3), out=out), torch.float64),
    "clamp": (lambda x, out: torch.clamp(x[0], 0, 1, out=out), torch.float16),
    "bitwise_and": (lambda x, out: torch.bitwise_and(x[0].long(), 3, out=out), torch.bool),
}


@pytest.mark.parametrize("name", OUTS)
def test_out_of_another_dtype(name: str) -> None:
    function, dtype = OUTS[name]
    check(function, torch.arange(6.0).view(2, 3) + 1.4, torch.zeros(3, dtype=dtype), captured=False)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_out_of_another_dtype_that_an_elementwise_call_casts_to(dtype: torch.dtype) -> None:
    check(lambda x, y, out: torch.add(x, y, out=out), torch.ones(3), torch.arange(3.0), torch.zeros(3, dtype=dtype))


@pytest.mark.parametrize("function", [torch.mv, torch.matmul])
@pytest.mark.parametrize("backend", ["jit", "compile"])
def test_operands_of_products_with_different_dtypes(function: Any, backend: str) -> None:
    """On fake tensors PyTorch lets f64 times f32 pass; and what a capture raises for it is no fault of fusec's."""
    x, v = torch.ones(4, 6, dtype=torch.float64), torch.ones(6)
    torch._dynamo.reset()
    fast = fusec.jit(function) if backend == "jit" else torch.compile(function, backend="fusec")
    with torch.no_grad():
        for kind in (torch.float64, torch.int64):
            _, error, _ = outcome(function, (x.to(kind), v))
            assert error is RuntimeError
            with warnings.catch_warnings():
                warnings.simplefilter("error", InternalErrorWarning)
                _, raised, _ = outcome(fast, (x.to(kind), v))
            assert raised is not None
            assert backend == "compile" or raised is error


TOO_LARGE = {
    "masked_fill": lambda x, number: x.masked_fill(x > 0, number),
    "masked_fill_": lambda x, number: x.clone().masked_fill_(x > 0, number),
    "fill_": lambda x, number: x.clone().fill_(number),
    "full": lambda x, number: torch.full((3,), number, dtype=x.dtype) + x,
    "full of one": lambda x, number: torch.full((1,), number, dtype=x.dtype) + x,
    "new_full": lambda x, number: x.new_full((3,), number),
    "where": lambda x, number: torch.where(x > 0, x, number),
    "scatter": lambda x, number: x.scatter(1, torch.zeros(2, 1, dtype=torch.int64), number),
    "pad": lambda x, number: F.pad(x, (1, 1), value=number),
    "add": lambda x, number: x + number,
}
BEYOND: list[tuple[torch.dtype, Any]] = [
    (torch.float16, -1e9),
    (torch.float16, -torch.inf),
    (torch.bfloat16, 1e39),
    (torch.float32, 1e39),
    (torch.int32, 2**40),
    (torch.uint8, 300),
]


@pytest.mark.parametrize(("dtype", "number"), BEYOND, ids=str)
@pytest.mark.parametrize("name", TOO_LARGE)
def test_numbers_that_a_dtype_does_not_hold(name: str, dtype: torch.dtype, number: Any) -> None:
    check(lambda x: TOO_LARGE[name](x, number), X.abs().to(dtype), captured=False)


def test_what_is_written_again_after_the_error() -> None:
    """The first numbers are in no result of the program, and yet there when the index is out of range."""

    def function(x: Any, z: Any, i: Any) -> Any:
        x.mul_(2)
        z.fill_(5)
        x.flip(-1).index_fill_(0, i, 2.0)
        z.copy_(x.sum())
        return (x,)

    jitted = fusec.jit(function)
    jitted(X.clone(), torch.zeros(4), torch.tensor([1, 0]))
    x, z = X.clone(), torch.zeros(4)
    with pytest.raises(IndexError):
        jitted(x, z, OUT)
    assert torch.equal(x, X * 2)
    assert z.tolist() == [5] * 4


@pytest.mark.parametrize("shape", [(7, 2, 3, 6), (7, 0, 3, 6), (1, 7, 2, 3, 6)], ids=str)
@pytest.mark.parametrize("used", [True, False])
def test_images_in_a_layout_that_a_pool_does_not_take(shape: tuple[int, ...], used: bool) -> None:
    """Without a batch, channels last of one axis less."""
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).contiguous(memory_format=layout)

    def pooled(x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool3d(x.relu(), 1)
        return y if used else x + 1

    check(pooled, x, captured=len(shape) == 5)
