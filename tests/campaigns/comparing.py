"""A program as written, jitted and in float64: what differs on one draw of arguments after another."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec

sys.path.insert(0, str(Path(__file__).parents[1]))

from aliasing import leaves, outcome  # found beside this folder
from oracle import ULPS, assert_close_to_oracle  # found beside this folder

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
FAKE_STRIDES = "PyTorch's rule for fake tensors says other strides than its kernel gives"


class Result(NamedTuple):
    """Of one call: what the jitted function gives, the function as written, and the function in float64."""

    ours: torch.Tensor
    theirs: torch.Tensor
    exact: torch.Tensor


@dataclass
class Runs:
    """A function run on draws of arguments.

    in_float64: the function for arguments in float64. dtype: of :data:`DTYPES`, what the function computes in.
    draws: on how many errors are compared where they are too large on one. nudged: how often the function as written
    also runs on a draw's arguments moved by a rounding, where errors are too large on that draw.
    """

    as_written: Callable[..., Any]
    in_float64: Callable[..., Any]
    arguments: Callable[[int], list[torch.Tensor]]
    dtype: str
    draws: int
    nudged: int = 0

    def __post_init__(self) -> None:
        self.jitted = fusec.jit(self.as_written)
        self.results: list[Result] = []

    def compared(self) -> str:
        """What is not as written; empty where all is."""
        for number in (0, 1):
            found = self.difference(number)
            if found.startswith("error"):
                found = self.compare_errors()
            if found:
                return found
        return ""

    def difference(self, number: int) -> str:
        """What is not as written on one draw; begins with "error" where all that differs is the size of errors."""
        given = self.arguments(number)
        self.results = []
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, error, said = outcome(self.as_written, given)
            actual, raised, message = outcome(self.jitted, given)
            if raised is not error:
                return f"raises {raised} ({message[:300]}), as written {error} ({said[:300]})"
            if error is not None:
                return "" if message == said else f"says {message[:300]!r}, as written {said[:300]!r}"
            exact, error, _ = outcome(self.in_float64, [_in_float64(x) for x in given])
            exact = expected if error is not None else exact  # of an empty result, where only f32 has one
        for k, (ours, theirs) in enumerate(zip(leaves(actual), leaves(expected), strict=True)):
            if _strides(ours) != _strides(theirs):
                if _strides(ours) == _strides(self._fake(given)[k]):
                    return FAKE_STRIDES
                return f"result {k} has strides {ours.stride()}, as written {theirs.stride()}"
        self.results = [Result(*each) for each in zip(leaves(actual), leaves(expected), leaves(exact), strict=True)]
        return min(self._findings(), key=lambda said: said.startswith("error"), default="")

    def _fake(self, given: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results as PyTorch's rules for fake tensors have them."""
        with FakeTensorMode() as mode:
            return list(leaves(self.as_written(*map(mode.from_tensor, given))))

    def _findings(self) -> Iterator[str]:
        for k, (ours, theirs, exact) in enumerate(self.results):
            same = ours.dtype is theirs.dtype is torch.float64 and ours.shape == theirs.shape
            if same and torch.allclose(ours, theirs, 1e-11, 1e-11, equal_nan=True):
                continue  # eager is the exact result
            try:
                assert_close_to_oracle(ours, exact, self._finite_where_exact(ours, theirs, exact))
            except AssertionError as error:
                yield f"{error}" if f"{error}".startswith("error") else f"result {k}: {error}"

    def _finite_where_exact(self, ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Eager's result; in half precision the exact one where eager's is NaN or infinite, and ours is as the exact
        one is: a chain overflows in eager, and in f32 does not, or oneDNN makes NaN of an infinity."""
        ours, theirs = ours.cpu(), theirs.cpu()
        if self.dtype not in ("bf16", "f16") or ours.shape != theirs.shape:
            return theirs
        rounded = exact.to(theirs.dtype)
        right = (ours.isfinite() & exact.isfinite()) | (ours.isinf() & (ours == rounded))
        return torch.where(right & ~theirs.isfinite(), rounded, theirs)

    def compare_errors(self) -> str:
        """What differs on all draws: of errors the largest, at most twice that of the code as written, and the median
        of each draw's largest, at most 1.5 times.

        The error of a few dozen elements is a matter of luck: where scores are large, and e to their power has the
        errors of single additions, one order of adding is often five times as exact as another on the same numbers.
        Where that is so, the code as written has such errors on arguments that are the same but for a rounding.
        """
        errors: dict[int, list[tuple[float, float]]] = {}
        rounding: dict[int, float] = {}
        for number in range(self.draws):
            found = self.difference(number)
            if found and not found.startswith("error"):
                return found
            near = self._errors_nearby(number) if found else {}
            for k, (ours, theirs, exact) in enumerate(self.results):
                if not ours.is_floating_point():
                    continue
                own = max(_error(theirs, exact), near.get(k, 0.0))
                errors.setdefault(k, []).append((_error(ours, exact), own))
                magnitude = exact[exact.isfinite()].abs().amax().item() if exact.isfinite().any() else 0.0
                rounding[k] = max(rounding.get(k, 0.0), ULPS * torch.finfo(ours.dtype).eps * magnitude)
        for k, pairs in errors.items():
            mine, eager = zip(*pairs, strict=True)
            for what, a, b in (("largest", max(mine), max(eager)), ("median", median(mine), median(eager))):
                if a > (2 if what == "largest" else 1.5) * b + rounding[k]:
                    return f"result {k}: of {self.draws} draws the {what} error is {a:.3g}, as written {b:.3g}"
        return ""

    def _errors_nearby(self, number: int) -> dict[int, float]:
        """The largest errors as written on arguments of which each number is that of the draw, or the one beside it."""
        given = self.arguments(number)
        generator = torch.Generator().manual_seed(number)
        largest: dict[int, float] = {}
        for _ in range(self.nudged):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = self.as_written(*(_nudged(x, generator) if x.is_floating_point() else x for x in given))
            for k, (theirs, result) in enumerate(zip(leaves(made), self.results, strict=True)):
                largest[k] = max(largest.get(k, 0.0), _error(theirs, result.exact))
        return largest


def laid_like(x: torch.Tensor, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor on a device, with its strides."""
    if device == "cpu" and dtype in (None, x.dtype):
        return x
    if 0 in x.stride():
        return x[:1].to(device, dtype).expand(x.shape)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device=device).copy_(x)


def _in_float64(x: torch.Tensor) -> torch.Tensor:
    return laid_like(x.cpu(), "cpu", torch.float64) if x.is_floating_point() else x.cpu()


def _nudged(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    by = torch.finfo(x.dtype).eps * (torch.rand(x.shape, generator=generator, dtype=torch.float64) - 0.5)
    return torch.empty_like(x).copy_(x.double() * (1 + by))


def _error(x: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest, of elements that are finite."""
    x = x.cpu()
    finite = x.isfinite() & exact.isfinite()
    return float((x.double() - exact)[finite].abs().amax()) if finite.any() else 0.0


def _strides(x: torch.Tensor) -> list[int]:
    if not x.numel():
        return []
    return [step for step, extent in zip(x.stride(), x.shape, strict=True) if extent > 1]
