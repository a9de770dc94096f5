"""Library calls get operands as the function gave them, and give what was captured, or the call runs as written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fusec  # noqa: E402
from fusec.errors import CaptureError  # noqa: E402
from fusec.ir.types import TensorType, i64  # noqa: E402
from fusec.notices import InternalErrorWarning  # noqa: E402
from fusec.runtime.adapters import load_arrays  # noqa: E402
from fusec.runtime.calls import first_checked  # noqa: E402
from fusec.runtime.library import ResultsDifferError  # noqa: E402

x = torch.linspace(-1, 1, 24).reshape(4, 6)


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    library = torch.library.Library("fusec_test_calls", "FRAGMENT")
    yield library
    library._destroy()


def define(library: Any, name: str, schema: str, real: Any, fake: Any) -> Any:
    library.define(f"{name}{schema}")
    library.impl(name, real, "CPU")
    torch.library.register_fake(f"fusec_test_calls::{name}", fake, lib=library)
    return getattr(torch.ops.fusec_test_calls, name).default


def in_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements as they lie, of an operand that is taken to be contiguous."""
    return x.as_strided((x.numel(),), (1,)).clone().reshape(x.shape)


def test_a_call_may_count_on_contiguous_operands(library: Any) -> None:
    op = define(library, "in_memory", "(Tensor x) -> Tensor", in_memory, torch.empty_like)
    ways = [
        lambda x: op(x.mT.contiguous()),
        lambda x: op((x + 1).mT.contiguous()),
        lambda x: op(x[:, ::2].clone()),
        lambda x: op(torch.ones(1, 6).expand(4, 6).contiguous()),
        lambda x: op(x.reshape(2, 2, 6).transpose(0, 1).reshape(4, 6)),
        lambda x: op(torch.relu(x).mT.contiguous()) + 1,
        lambda x: op(torch.zeros(4, 6) + 2),
    ]
    for way in ways:
        jitted: Any = fusec.jit(way)
        torch.testing.assert_close(jitted(x), way(x))
        assert not jitted.dispatcher.eager_calls


def test_an_operand_that_is_no_contiguous_one_stays_so(library: Any) -> None:
    def strides(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x.stride())

    op = define(library, "strides", "(Tensor x) -> Tensor", strides, lambda x: torch.empty(x.dim(), dtype=torch.int64))
    for way in (lambda x: op(x.mT), lambda x: op(x[:, ::2]), lambda x: op(x)):
        jitted: Any = fusec.jit(way)
        assert torch.equal(jitted(x), way(x))
        assert not jitted.dispatcher.eager_calls


FAKES = {
    "shape": (lambda x: x[:2].clone(), "Tensor", torch.empty_like),
    "dtype": (lambda x: x.double(), "Tensor", torch.empty_like),
    "layout": (lambda x: x.to_sparse(), "Tensor", torch.empty_like),
    "rank of a transposed result": (
        lambda x: [x.clone(), x + 1],
        "Tensor[]",
        lambda x: [x.new_empty(2, 6, 4).transpose(1, 2), torch.empty_like(x)],
    ),
    "number of results": (lambda x: [x + 1], "Tensor[]", lambda x: [torch.empty_like(x), torch.empty_like(x)]),
}


@pytest.mark.parametrize("kind", FAKES)
def test_other_results_than_the_stand_ins(library: Any, kind: str) -> None:
    real, result, fake = FAKES[kind]
    op = define(library, f"wrong_{kind.replace(' ', '_')}", f"(Tensor x) -> {result}", real, fake)

    def function(x: torch.Tensor) -> torch.Tensor:
        made = op(torch.relu(x))
        return (made[0] if isinstance(made, list) else made).to_dense() * 2

    jitted = fusec.jit(function)
    for _ in range(3):
        torch.testing.assert_close(jitted(x), function(x))
    assert sum(jitted.dispatcher.eager_calls.values()) == 3  # type: ignore[attr-defined]
    with pytest.raises(ResultsDifferError):
        fusec.jit(fallback="eager")(lambda x: x.add_(1) + function(x).sum())(x.clone())


def test_a_program_that_raises_where_the_function_does_not_runs_once(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def picky(x: torch.Tensor) -> torch.Tensor:
        runs.append(x.is_contiguous())
        if x.is_contiguous():
            raise ValueError("contiguous")
        return x + 1

    op = define(library, "picky", "(Tensor x) -> Tensor", picky, torch.empty_like)
    monkeypatch.delenv("FUSEC_VERIFY", raising=False)
    jitted: Any = fusec.jit(lambda x: op(x.mT.exp().mT * 2))
    with pytest.warns(InternalErrorWarning, match="internal error of fusec: ValueError: contiguous"):
        results = [jitted(x.mT) for _ in range(3)]
    torch.testing.assert_close(results, [x.mT.exp() * 2 + 1] * 3)
    assert runs == [True, False, False, False]


def test_such_a_program_is_an_error_where_nothing_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def handled(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        try:
            return x[i] + 1
        except IndexError:
            return x * 0

    monkeypatch.delenv("FUSEC_VERIFY", raising=False)
    jitted = fusec.jit(handled, fallback="error")
    torch.testing.assert_close(jitted(x, torch.tensor([1])), x[[1]] + 1)
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"its program raised IndexError: .*; the function as written does not"):
            jitted(x, torch.tensor([9]))
    raising = fusec.jit(lambda x, i: x[i] + 1, fallback="error")
    for _ in range(2):
        with pytest.raises(IndexError):
            raising(x, torch.tensor([9]))


def test_what_no_kernel_reads_may_lie_on_another_device() -> None:
    type = TensorType(i64, (), "cuda:0")
    seed = torch.tensor(3)
    run = first_checked(lambda: [seed], "call", {0: type}, load_arrays("torch"), {0})
    assert run[0]()[0] is seed
    with pytest.raises(ResultsDifferError, match="gave i64"):
        first_checked(lambda: [seed], "call", {0: type}, load_arrays("torch"))[0]()
    with pytest.raises(ResultsDifferError, match="gave f32"):
        first_checked(lambda: [seed.float()], "call", {0: type}, load_arrays("torch"), {0})[0]()
