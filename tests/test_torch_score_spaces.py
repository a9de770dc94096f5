"""Attention's backward: scores are computed again, and no probabilities are saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sweeps import by_night

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import check, compiled, copies, differentiated, near  # noqa: E402
from torch import fx  # noqa: E402

import fusec  # noqa: E402
from fusec import torch_autograd  # noqa: E402

ROWS, COLUMNS, WIDTH = 96, 112, 16


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of what each forward saves, where scores are always computed again."""
    shapes: list[Any] = []
    from torch._functorch.partitioners import min_cut_rematerialization_partition as cut

    def always(options: Any, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **given: Any) -> Any:
        spaces = torch_autograd.forms_of_spaces(joint, num_fwd_outputs)
        torch_autograd.recompute_scores(joint, num_fwd_outputs, spaces)
        made = cut(joint, inputs, num_fwd_outputs=num_fwd_outputs, **given)
        for node in made[1].graph.nodes:
            if node.op == "placeholder" and "tangents" not in node.name and spaces:
                shapes.append(tuple(node.meta["val"].shape))
        return made

    monkeypatch.setattr(torch_autograd, "_cut", always)
    return shapes


def leaf(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, dtype=dtype or torch.float32).requires_grad_()


def operands(dtype: Any = None) -> tuple[Any, Any, Any]:
    q, k, v = leaf(2, 3, ROWS, WIDTH), leaf(2, 3, COLUMNS, WIDTH), leaf(2, 3, COLUMNS, WIDTH)
    return tuple(x.detach().to(dtype or torch.float32).requires_grad_() for x in (q, k, v))  # type: ignore[return-value]


def scores(q: Any, k: Any) -> Any:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def distance(q: Any, k: Any) -> Any:
    rows, columns = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
    return rows[:, None] - columns[None, :]


def plain(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(scores(q, k), -1) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    apart = distance(q, k)
    slopes = 2.0 ** -torch.arange(1, 4, dtype=q.dtype, device=q.device)
    biased = 5 * torch.tanh(scores(q, k) / 5) - slopes[:, None, None] * apart.abs()
    return torch.softmax(biased.masked_fill((apart < 0) | (apart >= 40), float("-inf")), -1) @ v


def by_documents(q: Any, k: Any, v: Any, doc: Any) -> Any:
    seen = doc[: q.shape[-2], None] == doc[None, : k.shape[-2]]
    return torch.softmax(torch.where(seen, scores(q, k), torch.finfo(q.dtype).min), -1) @ v


def with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(scores(q, k) + bias, -1) @ v


def with_slopes(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    return torch.softmax(scores(q, k) - slopes[:, None, None] * distance(q, k).abs().to(q.dtype), -1) @ v


def with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s = scores(q, k)
    beside = sink[:, None, None].expand(*s.shape[:-1], 1)
    return torch.softmax(torch.cat([s, beside], -1), -1)[..., :-1] @ v


def in_floats(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(scores(q, k).float(), -1).to(v.dtype) @ v


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25, -1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def sigmoid(q: Any, k: Any, v: Any) -> Any:
    return torch.sigmoid(scores(q, k) - math.log(k.shape[-2])) @ v


def squared(q: Any, k: Any, v: Any) -> Any:
    return F.relu(scores(q, k)).square() @ v


def grouped(q: Any, k: Any, v: Any) -> Any:
    k, v = (x[:, :1].repeat_interleave(3, 1) for x in (k, v))
    return plain(q, k, v)


def expanded(q: Any, k: Any, v: Any) -> Any:
    k, v = (x[:, :1].expand(-1, 3, -1, -1) for x in (k, v))
    return plain(q, k, v)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    powers = torch.exp(s - s.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True) @ v


def with_its_statistics(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def of_two(q: Any, k: Any, v: Any) -> Any:
    """The difference of two maps of attention."""
    first, second = (torch.softmax(scores(q[..., a:b], k[..., a:b]), -1) for a, b in ((0, 8), (8, 16)))
    return (first - 0.3 * second) @ v


def read_twice(q: Any, k: Any, v: Any) -> Any:
    weights = torch.softmax(scores(q, k), -1)
    return weights @ v, weights @ v.square()


def dropped(q: Any, k: Any, v: Any) -> Any:
    return F.dropout(torch.softmax(scores(q, k), -1), 0.2) @ v


FORMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "plain": (plain, tuple),
    "soft cap, slopes, window": (capped, tuple),
    "documents": (by_documents, lambda: (torch.arange(COLUMNS) // 30,)),
    "a bias": (with_bias, lambda: (leaf(3, ROWS, COLUMNS),)),
    "a bias of one head": (with_bias, lambda: (leaf(1, 1, ROWS, COLUMNS),)),
    "slopes": (with_slopes, lambda: (leaf(3),)),
    "sinks": (with_sinks, lambda: (leaf(3),)),
    "einsum": (by_einsum, tuple),
    "sigmoid": (sigmoid, tuple),
    "relu squared": (squared, tuple),
    "grouped": (grouped, tuple),
    "expanded": (expanded, tuple),
    "by hand": (by_hand, tuple),
    "two maps": (of_two, tuple),
    "read twice": (read_twice, tuple),
}


def holds_scores(shapes: list[Any]) -> bool:
    return any(math.prod(shape) >= 2 * 3 * ROWS * COLUMNS // 4 for shape in shapes)


@pytest.mark.parametrize(
    "name",
    by_night(FORMS, "a bias of one head", "slopes", "einsum", "relu squared", "expanded", "two maps", "read twice"),
)
def test_no_scores_are_saved(name: str, saved: list[Any]) -> None:
    function, more = FORMS[name]
    given = more()
    check(function, *operands(), *given)
    assert saved
    own = {tuple(x.shape) for x in given}
    assert not holds_scores([shape for shape in saved if shape not in own])


SELDOM = [pytest.param(function, marks=pytest.mark.nightly) for function in (grouped, sigmoid)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [capped, in_floats, *SELDOM])
def test_other_types(function: Callable[..., Any], dtype: Any, saved: list[Any]) -> None:
    check(function, *operands(dtype))
    assert saved
    assert not holds_scores(saved)


def test_doubles(saved: list[Any]) -> None:
    inputs = operands(torch.float64)
    own, written = copies(inputs), copies(inputs)
    torch.testing.assert_close(differentiated(compiled(capped), own), differentiated(capped, written))
    assert not holds_scores(saved)


@pytest.mark.parametrize(
    "name", by_night(["soft cap, slopes, window", "a bias", "sinks", "by hand"], "sinks", "by hand")
)
def test_through_torch_compile(name: str, saved: list[Any]) -> None:
    function, more = FORMS[name]
    inputs = [*operands(), *more()]
    own, plain, wide = copies(inputs), copies(inputs), copies(inputs, torch.float64)
    found = differentiated(torch.compile(function, backend="fusec", dynamic=False), own)
    for one, other, best in zip(found, differentiated(function, plain), differentiated(function, wide), strict=True):
        near(one, other, best)
    assert saved


@pytest.mark.parametrize("function", [capped, grouped, pytest.param(plain, marks=pytest.mark.nightly)])
def test_the_row_sum_is_of_outputs(function: Callable[..., Any], saved: list[Any], monkeypatch: Any) -> None:
    """No reduction over the columns of scores is left in a backward."""
    seen: list[Any] = []
    kept = torch_autograd.recompute_scores

    def looking(joint: fx.GraphModule, *given: Any) -> None:
        kept(joint, *given)
        seen.extend(node for node in joint.graph.nodes if node.target is torch.ops.aten.sum.dim_IntList)

    monkeypatch.setattr(torch_autograd, "recompute_scores", looking)
    check(function, *operands())
    assert [tuple(node.args[0].meta["val"].shape)[-1] for node in seen if node.args[1] == [-1]] == [WIDTH]


class TestRows:
    def test_that_a_mask_hides_wholly(self, saved: list[Any]) -> None:
        def attend(q: Any, k: Any, v: Any, hidden: Any) -> Any:
            return torch.softmax(scores(q, k).masked_fill(hidden, float("-inf")), -1) @ v

        q, k, v = operands()
        hidden = torch.rand(ROWS, COLUMNS) < 0.3
        hidden[3] = True
        _same_where_nan(attend, q, k, v, hidden)

    def test_that_a_low_number_hides_wholly(self, saved: list[Any]) -> None:
        doc = torch.arange(COLUMNS) // 30
        doc[7] = 99
        q, k, v = operands()

        def attend(q: Any, k: Any, v: Any) -> Any:
            seen = (doc[:ROWS, None] == doc[None, :]) & (doc[None, :] != 99)
            return torch.softmax(torch.where(seen, scores(q, k), torch.finfo(q.dtype).min), -1) @ v

        check(attend, q, k, v)
        assert saved

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_with_what_is_no_number(self, value: float, saved: list[Any]) -> None:
        q, k, v = operands()
        with torch.no_grad():
            q[0, 1, 5, 2] = value
        _same_where_nan(plain, q, k, v)

    def test_of_scores_that_are_large(self, saved: list[Any]) -> None:
        q, k, v = operands()
        check(plain, (q.detach() * 300).requires_grad_(), k, v)


class TestGradients:
    def test_that_are_strided(self, saved: list[Any]) -> None:
        q, k, v = operands()
        for function in (compiled(plain), torch.compile(plain, backend="fusec", dynamic=False)):
            given = torch.randn(2, ROWS, WIDTH, 3).permute(0, 3, 1, 2)
            found, wanted = (torch.autograd.grad(f(q, k, v), (q, k, v), given) for f in (function, plain))
            torch.testing.assert_close(found, wanted)

    def test_that_are_expanded(self, saved: list[Any]) -> None:
        q, k, v = operands()
        for function in (compiled(plain), torch.compile(plain, backend="fusec", dynamic=False)):
            found, wanted = (torch.autograd.grad(f(q, k, v).sum(), (q, k, v)) for f in (function, plain))
            torch.testing.assert_close(found, wanted)

    def test_of_some_operands_alone(self, saved: list[Any]) -> None:
        for wanted in range(3):
            q, k, v = (x.detach().requires_grad_(number == wanted) for number, x in enumerate(operands()))
            check(plain, q, k, v)

    def test_of_one_of_two_results(self, saved: list[Any]) -> None:
        q, k, v = operands()
        function = compiled(read_twice)
        for number in (0, 1):
            found, wanted = (torch.autograd.grad(f(q, k, v)[number].sum(), (q, k, v)) for f in (function, read_twice))
            torch.testing.assert_close(found, wanted)

    def test_again(self, saved: list[Any]) -> None:
        q, k, v = operands()
        out = compiled(capped)(q, k, v)
        once = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), (q, k, v)), once)


def test_strided_operands(saved: list[Any]) -> None:
    qkv = torch.randn(2, COLUMNS, 3, 3, WIDTH).requires_grad_()

    def attend(qkv: Any) -> Any:
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        return plain(q, k, v).transpose(1, 2).flatten(2)

    check(attend, qkv)
    assert saved
    assert not holds_scores(saved)


@pytest.mark.parametrize("function", [with_its_statistics, dropped])
def test_what_is_left_as_it_is(function: Callable[..., Any], saved: list[Any]) -> None:
    """Scores that are read by more than maps, as random numbers are drawn once."""
    inputs = operands()
    own, written = copies(inputs), copies(inputs)
    torch.manual_seed(3)
    found = differentiated(fusec.jit(function), own)
    torch.manual_seed(3)
    torch.testing.assert_close(found, differentiated(function, written))


def test_the_user_s_own_checkpoints_hold(saved: list[Any]) -> None:
    from torch.utils.checkpoint import checkpoint

    def attend(q: Any, k: Any, v: Any) -> Any:
        return checkpoint(plain, q, k, v, use_reentrant=False)

    q, k, v = operands()
    found = torch.autograd.grad(torch.compile(attend, backend="fusec", dynamic=False)(q, k, v).sum(), (q, k, v))
    torch.testing.assert_close(found, torch.autograd.grad(plain(q, k, v).sum(), (q, k, v)))
    assert not saved


def test_a_short_row_is_saved(saved: list[Any]) -> None:
    check(plain, *(leaf(2, 3, 8, 16) for _ in range(3)))
    assert not saved


@pytest.mark.parametrize(("times", "recomputes"), [((2.0, 1.0), True), ((1.0, 2.0), False), ((None, 1.0), False)])
def test_the_predicted_time_decides(times: Any, recomputes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter([times[0], 0.0, times[1], 0.0])
    saved: list[bool] = []

    def predicted(module: fx.GraphModule, options: Any) -> float | None:
        return next(told)

    monkeypatch.setattr(torch_autograd, "predicted_time", predicted)
    function = compiled(plain)
    function(*operands())

    def keep(x: Any) -> Any:
        saved.append(x.numel() >= 6 * ROWS * COLUMNS)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*operands())
    assert saved
    assert any(saved) is not recomputes


def test_each_form_of_scores_is_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(q: Any, k: Any, v: Any, a: Any, b: Any) -> Any:
        return plain(q, k, v).sum() + (torch.tanh(a @ b) @ b.mT).sum()

    def held(tensors: list[Any]) -> tuple[bool, bool]:
        """Whether scores of the attention are among tensors, and those of the other space."""
        return any(x.numel() == 6 * ROWS * COLUMNS for x in tensors), any(x.numel() == 400 * 400 for x in tensors)

    def predicted(module: fx.GraphModule, options: Any) -> float:
        times = {(True, True): 4.0, (False, False): 3.0, (False, True): 2.0, (True, False): 5.0}
        given = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        return times[held(given)] if any("tangents" in str(node.target) for node in module.graph.nodes) else 0.0

    monkeypatch.setattr(torch_autograd, "predicted_time", predicted)
    inputs = [*operands(), leaf(400, 8), leaf(8, 400)]
    function = compiled(two)
    found = torch.autograd.grad(function(*inputs), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(two(*inputs), inputs), rtol=1e-3, atol=1e-4)
    saved: list[Any] = []

    def keep(x: Any) -> Any:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*inputs)
    assert held(saved) == (False, True)


def _same_where_nan(function: Callable[..., Any], *inputs: Any) -> None:
    found, wanted, true = (
        differentiated(f, copies(inputs, dtype))
        for f, dtype in ((compiled(function), None), (function, None), (function, torch.float64))
    )
    for one, other, best in zip(found, wanted, true, strict=True):
        if one is None or not one.is_floating_point():
            continue
        assert torch.equal(one.isnan(), other.isnan())
        near(*(torch.nan_to_num(x, nan=0.0) for x in (one, other, best)))
