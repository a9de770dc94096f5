"""One sample of one op through fusec, compared with eager in everything that a caller can see."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from oracle import assert_close_to_oracle
from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

from fusec.build import Options, build
from fusec.frontend.capture import Capture
from fusec.runtime.dispatch import Dispatcher
from fusec.torch_compile import backend, gathering

State = Literal["compiled", "random", "library", "refused", "wrong"]
"""compiled: all of it in kernels of fusec. random: so it is, but for PyTorch's generator that draws.
library: a call in it runs through PyTorch. refused: it runs as written.
wrong: something differs from eager."""

SPECIALS = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, 1e4, -1e4, 1.0, -1.0, 0.5)


@dataclass(frozen=True)
class Outcome:
    """What became of one sample, and why."""

    state: State
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """A function of tensors alone, with the tensors; everything else of a sample is bound."""

    function: Callable[..., Any]
    tensors: list[torch.Tensor]

    def copied(self) -> Case:
        """The case on copies, with strides and offsets as they are and inputs that share memory sharing it."""
        storages: dict[int, Any] = {}
        copies = []
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            copy = storages.setdefault(storage.data_ptr(), storage.clone())
            layout = (tensor.storage_offset(), tensor.size(), tensor.stride())
            copies.append(torch.empty(0, dtype=tensor.dtype).set_(copy, *layout))
        return Case(self.function, copies)


def case_of(op: Any, sample: Any) -> Case:
    """A sample of an op as a function of its tensors."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, spec)
        return op.op(first, *args, **kwargs)

    return Case(call, [leaves[k] for k in places])


def with_specials(case: Case, seed: int, share: float) -> Case:
    """The case with special values in a ``share`` of the places of its float tensors."""
    generator = torch.Generator().manual_seed(seed)

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        values = torch.tensor(SPECIALS, dtype=tensor.dtype)
        picked = values[torch.randint(len(SPECIALS), tensor.shape, generator=generator)]
        where = torch.rand(tensor.shape, generator=generator) < share
        result = tensor.clone()
        return result.copy_(torch.where(where, picked, tensor))

    return Case(case.function, [changed(t) for t in case.tensors])


# Running


def run_directly(case: Case) -> tuple[Any, Outcome]:
    """Through fusec's own dispatch: capture, passes, kernels, one call."""

    def compile_capture(capture: Capture) -> Any:
        return build(capture.graph, capture.library, Options(cache=False)).executable

    dispatcher = Dispatcher(case.function, compile_capture)
    result = dispatcher(tuple(case.tensors), {})
    plans = dispatcher.plans
    if not plans or plans[0].executable is None:
        return result, Outcome("refused", " ".join(dispatcher.eager_calls) or "not compiled")
    assert plans[0].capture is not None
    return result, _noted(plans[0].capture.notes)


def run_through_dynamo(case: Case) -> tuple[Any, Outcome]:
    """Through ``torch.compile``."""
    torch._dynamo.reset()
    counters["graph_break"].clear()
    with gathering() as graphs:
        result = torch.compile(case.function, backend=partial(backend))(*case.tensors)
    if not graphs and counters["graph_break"]:
        return result, Outcome("refused", f"Dynamo: {next(iter(counters['graph_break']))}")
    return result, _outcome_of(graphs)


def _outcome_of(graphs: Sequence[Any]) -> Outcome:
    called = [graph for graph in graphs if graph.parts or graph.cuts]
    for graph in called:
        if graph.eager_calls:
            return Outcome("refused", " ".join(graph.eager_calls))
        if graph.cuts:
            return Outcome("library", graph.cuts[0])
    return _noted([note for graph in called for capture in graph.captures for note in capture.notes])


def _noted(notes: Sequence[str]) -> Outcome:
    """What the library is called for."""
    calls = [note for note in notes if "it draws random numbers" not in note]
    if calls:
        return Outcome("library", calls[0])
    return Outcome("random", notes[0]) if notes else Outcome("compiled")


Run = Callable[[Case], tuple[Any, Outcome]]


def check_forward(case: Case, run: Run) -> Outcome | None:
    """Eager's result against fusec's. None where eager itself raises."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, mine = case.copied(), case.copied()
        try:
            torch.manual_seed(0)
            expected = eager.function(*eager.tensors)
        except Exception:
            return None
        exact = _exact(case, (expected, eager.tensors))
        try:
            torch.manual_seed(0)
            found, outcome = run(mine)
        except Exception as error:  # an error that eager does not raise
            return Outcome("wrong", f"raised {type(error).__name__}: {error}")
        try:
            _compare((found, mine.tensors), (expected, eager.tensors), exact)
        except AssertionError as error:
            return Outcome("wrong", f"{error}")
    return outcome


def check_gradients(case: Case) -> Outcome | None:
    """Eager's gradients against those through AOTAutograd and fusec. None where there are none to compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = _gradients(case.function, case.tensors)
        except Exception:
            return None
        if not expected:
            return None
        try:
            exact = _gradients(case.function, [_double(t) for t in case.tensors])
        except Exception:
            exact = [g.double() for g in expected]
        torch._dynamo.reset()
        try:
            with gathering() as graphs:
                found = _gradients(torch.compile(case.function, backend=partial(backend)), case.tensors)
        except Exception as error:
            return Outcome("wrong", f"raised {type(error).__name__}: {error}")
    try:
        assert len(found) == len(expected), f"{len(found)} gradients, eager has {len(expected)}"
        for mine, eager, best in zip(found, expected, exact, strict=True):
            assert_close_to_oracle(mine, best, eager, slack=4.0)
    except AssertionError as error:
        return Outcome("wrong", f"gradient: {error}")
    return _outcome_of(graphs)


def _gradients(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    inputs = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    outputs = [t for t in pytree.tree_leaves(function(*inputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs:
        return []
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs]
    given = torch.autograd.grad(outputs, [t for t in inputs if t.requires_grad], weights, allow_unused=True)
    return [torch.zeros_like(g) if g._is_zerotensor() else g for g in given if g is not None]


# Comparing

Ran = tuple[Any, list[torch.Tensor]]
"""A result, and the inputs as they are after it."""


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _exact(case: Case, expected: Ran) -> Any:
    """The result and the inputs after it in float64; eager's own where the op can't be run so."""
    try:
        torch.manual_seed(0)
        inputs = [_double(t) for t in case.copied().tensors]
        exact = (case.function(*inputs), inputs)
        pairs = list(zip(pytree.tree_leaves(exact), pytree.tree_leaves(expected), strict=True))
        if all(getattr(a, "shape", None) == getattr(b, "shape", None) for a, b in pairs):
            return exact
    except Exception:  # an op may refuse float64 beside an argument that names another dtype
        return expected
    return expected


def _compare(found: Ran, expected: Ran, exact: Any) -> None:
    mine, spec = pytree.tree_flatten(found)
    theirs, wanted = pytree.tree_flatten(expected)
    assert spec == wanted, f"the result is {spec}, eager's {wanted}"
    for a, b, x in zip(mine, theirs, pytree.tree_leaves(exact), strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b), f"a result of type {type(a).__name__}, eager's {type(b).__name__}"
            assert a == b or (a != a and b != b), f"{a} is not {b}"
            continue
        assert a.dtype == b.dtype, f"dtype {a.dtype}, eager has {b.dtype}"
        assert a.shape == b.shape, f"shape {tuple(a.shape)}, eager has {tuple(b.shape)}"
        assert _strides(a) == _strides(b), f"strides {a.stride()}, eager has {b.stride()} for {tuple(b.shape)}"
        assert _shares(a, found[1]) == _shares(b, expected[1]), "aliasing differs from eager's"
        assert_close_to_oracle(a, _real(x, b), b)
        if b.is_floating_point():
            zeros = (b == 0) & (a == 0)
            assert torch.equal(a[zeros].signbit(), b[zeros].signbit()), "a zero has another sign than eager's"


def _real(exact: Any, eager: torch.Tensor) -> Any:
    """The exact result where it is of eager's kind."""
    same = isinstance(exact, torch.Tensor) and exact.is_floating_point() == eager.is_floating_point()
    return exact if same else eager


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if tensor.numel() < 2:
        return ()
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)


def _shares(tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """The inputs whose memory a result lies in, and where."""
    if not tensor.numel():
        return []
    own = tensor.untyped_storage().data_ptr()
    return [
        (k, tensor.storage_offset())
        for k, t in enumerate(inputs)
        if t.numel() and t.untyped_storage().data_ptr() == own
    ]


def plain_reason(reason: str) -> str:
    """A reason without places and numbers that differ from sample to sample."""
    text = re.sub(r" at \S+:\d+", "", reason.splitlines()[0] if reason else "")
    text = re.sub(r"\S+\.py:\d+: ", "", text)
    return re.sub(r"\(call \d+\)", "", text).strip()[:200]
