"""Some lives of a module and two functions, and that the campaign sees what is otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fusec
from tests.campaigns.held_programs import DifferenceError, Pair, is_dynamos, replay, smallest
from tests.campaigns.state_machine import READS, WRITES, lives

CALL = "draw(1, (3, 6)), draw(2, (3, 6))"


@pytest.fixture(autouse=True)
def no_hooks_of_all_modules() -> Iterator[None]:
    """One that a line sets stays: ``torch.export`` of any module fails in the tests that follow."""
    yield
    torch.nn.modules.module._global_forward_hooks.clear()


def test_lives_that_are_drawn() -> None:
    assert not lives(0, examples=2, steps=5)


@pytest.mark.parametrize("way", ["jit", "compile"])
def test_a_life(way: str) -> None:
    pair = Pair(way)
    pair.do("net.eval()")
    pair.call("net", CALL)
    for line in (WRITES[0], WRITES[3], WRITES[18], "net.config.scale = 0.5", "kept[0].data.fill_(7)"):
        pair.do(line)
        pair.call("net", CALL)
    pair.call("net", "draw(1, (3, 5)), draw(2, (3, 6))")
    pair.call_in_threads("net", CALL)
    pair.call_in_child("net", CALL)
    pair.train(CALL)
    pair.call("scale", "draw(1, (3, 6))")
    pair.call("rows", "np.ones((3, 4))")
    pair.save("rows", "np.ones((3, 4))")


@pytest.mark.parametrize("line", [*WRITES, *READS])
def test_every_line_runs(line: str) -> None:
    """Or raises in both worlds, for a reason that is no slip of the pen."""
    pair = Pair("eager")
    pair.call("net", CALL)
    pair.call("rows", "np.ones((3, 4))")
    pair.call("scale", "draw(1, (3, 6))")
    pair.do(line)
    try:
        pair.eager.do(line)
    except Exception as error:
        assert not isinstance(error, NameError | SyntaxError)  # noqa: PT017


Change = Callable[..., Any]


def _stale(function: Any) -> Change:
    """The weights of the first call, for ever."""
    kept: list[Any] = []

    def call(*args: Any) -> Any:
        if not kept:
            kept.append(copy.deepcopy(function))
        return kept[0](*args)

    return call


def _reused(function: Any) -> Change:
    """Results in the memory of earlier ones."""
    memory: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        made = function(*args)
        if isinstance(made, dict):
            z = made["z"]
            made["z"] = memory.setdefault(z.shape, z.detach()).copy_(z.detach())
        return made

    return call


def _swallowed(function: Any) -> Change:
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception:
            return args[0]

    return call


def _writing(function: Any) -> Change:
    def call(*args: Any) -> Any:
        made = function(*args)
        if isinstance(args[0], torch.Tensor):
            args[0].detach().add_(1)
        return made

    return call


def _of_copies(function: Any) -> Change:
    def call(*args: Any) -> Any:
        made = function(*args)
        return {k: v.clone() for k, v in made.items()} if isinstance(made, dict) else made

    return call


def _counting(function: Any) -> Change:
    def call(*args: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            function.count += 1  # type: ignore[operator]
        return function(*args)

    return call


@pytest.mark.parametrize("wrong", [_stale, _reused, _swallowed, _writing, _of_copies, _counting])
def test_a_difference_is_seen(wrong: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", wrong)
    with pytest.raises(DifferenceError):
        _live(Pair("jit"))


def _live(pair: Pair) -> None:
    for line in ("net.eval()", "net.first.weight.data[1] = 0.25", "net.config.scale = 0.5"):
        pair.do(line)
        pair.call("net", CALL)
        pair.call("net", "draw(1, (3, 5)), draw(2, (3, 6))")


def test_steps_are_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusec, "jit", _stale)
    steps = [
        "pair = Pair('jit')",
        "pair.do('net.eval()')",
        f"pair.call('net', {CALL!r})",
        "pair.mode('grad', 'enable_grad')",
        "pair.do('net.first.weight.data[1] = 0.25')",
        "pair.do('net.seen = torch.zeros(6)')",
        f"pair.call('net', {CALL!r})",
    ]
    assert replay(steps)
    assert smallest(steps) == [steps[0], steps[-1]], "a weight that is returned is another tensor"


def test_what_dynamo_does_itself_is_told_apart() -> None:
    """It does not look whether hooks were added to a module that it has seen."""
    steps = [
        "pair = Pair('compile')",
        "pair.do('net.eval()')",
        f"pair.call('net', {CALL!r})",
        "pair.do('handles.append(net.block.register_forward_hook(double_output))')",
        f"pair.call('net', {CALL!r})",
    ]
    assert is_dynamos(steps)
    assert not is_dynamos(steps[:3])
