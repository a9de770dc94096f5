"""Losses over wide rows, made in chunks of rows with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sweeps import by_night

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from gradients import check, copies, near  # noqa: E402
from torch import fx  # noqa: E402

import fusec  # noqa: E402
from fusec import torch_autograd, torch_row_chunks, torch_wide_rows  # noqa: E402

ROWS, WIDTH, WORDS = 24, 16, 90
CHUNKS = 4


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each cut did: how many wide products were made in chunks, and the shapes of what the forward saves."""
    cuts: list[Any] = []
    from torch._functorch.partitioners import min_cut_rematerialization_partition as cut

    def always(options: Any, joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **given: Any) -> Any:
        count = len(torch_wide_rows.wide_products(joint, num_fwd_outputs))
        made = torch_row_chunks.cut_in_chunks(cut, joint, inputs, num_fwd_outputs=num_fwd_outputs, **given)
        placeholders = [n for n in made[1].graph.nodes if n.op == "placeholder" and "tangents" not in n.name]
        cuts.append((count, [tuple(n.meta["val"].shape) for n in placeholders]))
        return made

    monkeypatch.setattr(torch_wide_rows, "FEWEST", 64)
    monkeypatch.setattr(torch_row_chunks, "chunks_of", lambda wide: CHUNKS)
    monkeypatch.setattr(torch_autograd, "_cut", always)
    return cuts


def operands(dtype: Any = None) -> tuple[Any, Any, Any]:
    x, w = torch.randn(ROWS, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()
    target = torch.randint(0, WORDS, (ROWS,))
    wide = tuple(v.detach().to(dtype or torch.float32).requires_grad_() for v in (x, w))
    return *wide, target  # type: ignore[return-value]


def entropy(x: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy(F.linear(x, w), t)


def smoothed_sum(x: Any, w: Any, t: Any) -> Any:
    t = torch.where(t % 5 == 0, -100, t)
    return F.cross_entropy(F.linear(x, w).float(), t, label_smoothing=0.1, reduction="sum")


def ignored(x: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy(F.linear(x, w).float(), torch.where(t % 3 == 0, 7, t), ignore_index=7)


def of_sequences(x: Any, w: Any, t: Any) -> Any:
    logits = x.view(4, ROWS // 4, WIDTH) @ w.t()
    return F.cross_entropy(logits.flatten(0, 1).float(), t)


def gathered_with_z_loss(x: Any, w: Any, t: Any) -> Any:
    logits = (x.view(4, ROWS // 4, WIDTH) @ w.t()).float()
    lse = torch.logsumexp(logits, -1)
    picked = logits.gather(-1, t.view(4, -1, 1)).squeeze(-1)
    return (lse - picked).mean() + 1e-2 * (lse**2).mean()


def log_softmax_gathered(x: Any, w: Any, t: Any) -> Any:
    return -torch.log_softmax(x @ w.t(), -1).gather(-1, t[:, None]).sum()


def capped_and_masked(x: Any, w: Any, t: Any) -> Any:
    logits = 5 * torch.tanh(F.linear(x, w) / 5)
    losses = F.cross_entropy(logits.float(), t, reduction="none")
    kept = (t % 4 != 1).float()
    return (losses * kept).sum() / kept.sum()


def some_words(x: Any, w: Any, t: Any) -> Any:
    """Logits of padded words are dropped."""
    return F.cross_entropy(F.linear(x, w)[:, : WORDS - 10].float(), t % (WORDS - 10))


def hidden_words(x: Any, w: Any, t: Any) -> Any:
    """Words that are never meant: their logits are -inf, and their gradients 0."""
    hidden = torch.arange(WORDS) % 9 == 4
    logits = F.linear(x, w).masked_fill(hidden, float("-inf"))
    return F.cross_entropy(logits.float(), torch.where(t % 9 == 4, t - 1, t))


def distilled(x: Any, w: Any, t: Any) -> Any:
    """A gradient for each word, not of a target alone."""
    taught = torch.softmax(torch.arange(WORDS, dtype=torch.float32) / WORDS - t[:, None] % 7, -1)
    return -(taught * torch.log_softmax(F.linear(x, w).float(), -1)).sum(-1).mean()


def behind_a_norm(x: Any, w: Any, t: Any) -> Any:
    return 3 * F.cross_entropy(F.linear(F.layer_norm(x, (WIDTH,)), w), t) + x.square().mean()


FORMS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(entropy, smoothed_sum, ignored, of_sequences, gathered_with_z_loss, log_softmax_gathered),
        *(capped_and_masked, some_words, hidden_words, distilled, behind_a_norm),
    )
}


@pytest.mark.parametrize(
    "name", by_night(FORMS, "of_sequences", "log_softmax_gathered", "hidden_words", "some_words", "behind_a_norm")
)
def test_no_wide_values_are_saved(name: str, saved: list[Any]) -> None:
    check(FORMS[name], *operands())
    assert saved
    for count, shapes in saved:
        assert count == 1
        assert all(shape[-1:] != (WORDS,) for shape in shapes), shapes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: Any, saved: list[Any]) -> None:
    check(entropy, *operands(dtype))
    assert saved[0][0] == 1


def test_a_bias_has_its_gradient(saved: list[Any]) -> None:
    bias = torch.randn(WORDS).requires_grad_()
    check(lambda x, w, t, b: F.cross_entropy(F.linear(x, w, b), t), *operands(), bias)
    assert saved[0][0] == 1


def test_a_gradient_that_is_no_1(saved: list[Any]) -> None:
    """What is made for 1 is scaled, and may be scaled again: the graph is kept."""
    inputs = operands()
    own, exact = copies(inputs), copies(inputs, torch.float64)
    loss, wanted = fusec.jit(entropy)(*own), entropy(*exact)
    for scale in (-2.5, 0.0, 1e-3):
        for made, expected in zip(
            torch.autograd.grad(loss, own[:2], torch.tensor(scale), retain_graph=True),
            torch.autograd.grad(wanted, exact[:2], torch.tensor(scale, dtype=torch.float64), retain_graph=True),
        ):
            torch.testing.assert_close(made.double(), expected, rtol=1e-4, atol=1e-6)
    assert saved[0][0] == 1


def test_through_torch_compile(saved: list[Any]) -> None:
    inputs = operands()
    own, eager, exact = copies(inputs), copies(inputs), copies(inputs, torch.float64)
    torch.compile(of_sequences, backend="fusec")(*own).backward()
    for each in (eager, exact):
        of_sequences(*each).backward()
    for made, expected, true in zip(own[:2], eager[:2], exact[:2]):
        near(made.grad, expected.grad, true.grad)
    assert saved[0][0] == 1


def test_special_values_are_where_the_code_has_them(saved: list[Any]) -> None:
    x, w, t = operands()
    with torch.no_grad():
        x[3, 2], x[11, 5], w[8, 1] = torch.nan, torch.inf, -torch.inf
    t = torch.where((torch.arange(ROWS) == 3) | (torch.arange(ROWS) == 11), -100, t)
    own, eager = copies((x, w, t)), copies((x, w, t))
    for function, args in ((fusec.jit(entropy), own), (entropy, eager)):
        function(*args).backward()
    for made, expected in zip(own[:2], eager[:2]):
        assert torch.equal(made.grad.isnan(), expected.grad.isnan())
    assert saved[0][0] == 1


def test_two_heads(saved: list[Any]) -> None:
    other = torch.randn(WORDS + 2, WIDTH).requires_grad_()

    def both(x: Any, w: Any, t: Any, other: Any) -> Any:
        return entropy(x, w, t) + 0.3 * entropy(x, other, t)

    check(both, *operands(), other)
    assert saved[0][0] == 2


def _scores_too(x: Any, w: Any, t: Any) -> Any:
    logits = F.linear(x, w)
    return F.cross_entropy(logits, t), logits


def _perplexity(x: Any, w: Any, t: Any) -> Any:
    """The gradient of each row depends on the losses of all."""
    return torch.exp(entropy(x, w, t) / 8)


def _of_each_row(x: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy(F.linear(x, w), t, reduction="none")


def _across_rows(x: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy(F.linear(x, w).softmax(0), t)


def _network(x: Any, w: Any, t: Any) -> Any:
    return torch.relu(F.linear(x, w)) @ w


@pytest.mark.parametrize("function", [_scores_too, _perplexity, _of_each_row, _across_rows, _network])
def test_what_is_left_as_it_is(function: Callable[..., Any], saved: list[Any]) -> None:
    check(function, *operands())
    assert saved[0][0] == 0


def test_half_gradients_stay_behind_a_scaled_loss(saved: list[Any]) -> None:
    x, w, t = operands(torch.float16)
    fusec.jit(lambda x, w, t: F.cross_entropy(F.linear(x, w).float(), t))(x, w, t).backward()
    assert saved[0][0] == 0


@pytest.mark.parametrize(("times", "chunked"), [((1.0, 1.04), True), ((1.0, 1.1), False), ((float("inf"), 1.0), False)])
def test_the_predicted_time_decides(times: Any, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_wide_rows, "FEWEST", 64)
    monkeypatch.setattr(torch_row_chunks, "chunks_of", lambda wide: CHUNKS)
    monkeypatch.setattr(torch_autograd, "chunks_of", lambda wide: CHUNKS)
    told = iter(times)
    monkeypatch.setattr(torch_autograd, "_predicted", lambda graphs, options: next(told))
    found: list[int] = []
    cut = torch_autograd._cut

    def noted(*args: Any, **given: Any) -> Any:
        made = cut(*args, **given)
        found.append(sum(node.target is torch.ops.aten.mm.default for node in made[0].graph.nodes))
        return made

    monkeypatch.setattr(torch_autograd, "_cut", noted)
    check(entropy, *operands())
    assert found == [3 * CHUNKS if chunked else 1]


def test_chunks_divide_the_rows() -> None:
    start = fx.Graph().placeholder("x")
    start.meta["val"] = torch.empty(3 * 2**12, 2**17, dtype=torch.bfloat16, device="meta")
    assert torch_row_chunks.chunks_of(torch_wide_rows.Wide(start, 3 * 2**12)) == 3
