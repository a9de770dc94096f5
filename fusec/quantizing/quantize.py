# SPDX-License-Identifier: Apache-2.0
"""Calibration of a model on data: ranges, layers in fewer bits, and what each of them costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, log10
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fusec.calibrated import ATTRIBUTE, LayerReport, QuantizationReport
from fusec.errors import OptionError
from fusec.options import check_choice
from fusec.progress import Done, bar
from fusec.quantizing.layers import (
    GROUPS,
    Fp8Linear,
    Int4WeightLinear,
    Int8Linear,
    Int8WeightLinear,
    LowPrecisionConv2d,
)
from fusec.quantizing.ranges import Method, Seen, chosen_range

Scheme = Literal["int8", "fp8", "int8-weights", "int4-weights"]
_Layer = nn.Linear | nn.Conv2d
_KINDS = (nn.Linear, nn.Conv2d)


def quantize(
    model: nn.Module,
    data: Iterable[Any],
    scheme: Scheme = "int8",
    method: Method = "minmax",
    budget: float = 0.0,
) -> nn.Module:
    """A copy of a model with its linear layers and 2-d convolutions in fewer bits: plain PyTorch code.

    data: batches to calibrate on; a tuple or list is the positional arguments of a call, a mapping the named ones,
    anything else the one argument. They are gone through four times. scheme: ``"int8"`` and ``"fp8"`` (e4m3) round
    weights (a scale for each row) and activations (one static scale, for int8 a zero point too); ``"int8-weights"`` and
    ``"int4-weights"`` (groups of 128 columns, or 64 or 32) round weights alone. method: how the range of activations is
    chosen. budget: the share of the weights, from 0 to 1, that may stay in float: the layers with the least signal over
    noise are kept first.

    The result's ``quantization`` is a :class:`QuantizationReport`; its ``str`` is a table by layer. OptionError for
    options that can't be, data without a batch, or a model without such layers.
    """
    batches = _checked(model, data, scheme, method, budget)
    made = copy.deepcopy(model).eval()
    layers: dict[str, _Layer] = {
        name: m for name, m in made.named_modules() if isinstance(m, _KINDS) and type(m) in _KINDS
    }
    if not layers:
        raise OptionError(f"{type(model).__name__} has no nn.Linear and no nn.Conv2d to be in fewer bits")
    with torch.no_grad(), bar(f"calibrating {type(model).__name__}", 4 * len(batches)) as done:
        seen = _observe(made, layers, batches, done)
        ranges = {name: chosen_range(seen[name], method) for name in layers}
        reasons = {name: _why_not(layer, scheme, seen[name]) for name, layer in layers.items()}
        smaller = {
            name: _in_fewer_bits(layer, scheme, *ranges[name]) for name, layer in layers.items() if not reasons[name]
        }
        wanted, noise = _compare(made, layers, smaller, batches, done)
        kept = _kept(layers, noise, budget)
        for name, layer in smaller.items():
            if name not in kept:
                made = _put(made, layers[name], layer.to(layers[name].weight.device))
        whole = _Noise()
        for (args, kwargs), results in zip(batches, wanted, strict=True):
            for found, exact in zip(_tensors(made(*args, **kwargs)), results, strict=True):
                whole.add(exact, found)
            done()
    reports = tuple(
        LayerReport(
            *(name, layer.weight.numel(), *ranges[name]),
            noise[name].decibels if name in noise else inf,
            name in kept,
            reasons[name],
        )
        for name, layer in layers.items()
    )
    made.__dict__[ATTRIBUTE] = QuantizationReport(scheme, method, reports, whole.decibels)
    return made


class _Noise:
    """The energy of exact results, and of what others differ by."""

    def __init__(self) -> None:
        self.signal, self.noise = 0.0, 0.0

    def add(self, exact: Tensor, found: Tensor) -> None:
        self.signal += float(exact.double().square().sum())
        self.noise += float((found.double() - exact.double()).square().sum())

    @property
    def decibels(self) -> float:
        if not self.noise:
            return inf
        ratio = self.signal / self.noise
        return 10 * log10(ratio) if ratio > 0 else -inf  # of what is not finite, too


def _checked(
    model: object, data: Iterable[Any], scheme: str, method: str, budget: object
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The batches as calls. OptionError for options that can't be."""
    check_choice("scheme", scheme, get_args(Scheme))
    check_choice("method", method, get_args(Method))
    if not isinstance(model, nn.Module):
        raise OptionError(f"fusec.quantize takes a module, not {type(model).__name__}")
    if not isinstance(budget, int | float) or not 0 <= budget <= 1:
        raise OptionError(f"budget={budget!r}; it is a share of the weights, from 0 to 1")
    batches = [_call_of(batch) for batch in data]
    if not batches:
        raise OptionError("data= has no batch to calibrate on")
    return batches


def _call_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _tensors(result: Any) -> list[Tensor]:
    """The float tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    parts = result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple | list) else ()
    return [t for part in parts for t in _tensors(part)]


def _observe(model: nn.Module, layers: Mapping[str, _Layer], batches: Sequence[Any], done: Done) -> dict[str, Seen]:
    """What each layer is given: the ends first, then how often each part between."""
    seen = {name: Seen() for name in layers}
    for take in (Seen.widen, Seen.count):

        def note(name: str, x: Tensor, take: Callable[[Seen, Tensor], None] = take) -> None:
            take(seen[name], x)

        with _watching(layers, note):
            for args, kwargs in batches:
                model(*args, **kwargs)
                done()
    return seen


@contextmanager
def _watching(layers: Mapping[str, _Layer], note: Callable[[str, Tensor], object]) -> Iterator[None]:
    def told(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        note(name, args[0] if args else kwargs["input"])

    handles = [
        layer.register_forward_pre_hook(lambda _, args, kwargs, name=name: told(name, args, kwargs), with_kwargs=True)
        for name, layer in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _why_not(layer: _Layer, scheme: Scheme, seen: Seen) -> str:
    if scheme in ("int8", "fp8") and not seen.is_finite:
        return "its input is not finite" if seen.any else "no batch reaches it"
    if scheme != "int4-weights":
        if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
            return f"pads by {layer.padding_mode}"
        return ""
    if isinstance(layer, nn.Conv2d):
        return "a convolution's weights stay in float"
    if not any(layer.weight.shape[1] % group == 0 for group in GROUPS):
        return f"rows of {layer.weight.shape[1]} are no groups of {GROUPS[-1]}"
    return ""


def _in_fewer_bits(layer: _Layer, scheme: Scheme, low: float, high: float) -> nn.Module:
    if isinstance(layer, nn.Conv2d):
        return LowPrecisionConv2d(layer, scheme, low, high)
    assert isinstance(layer, nn.Linear)
    match scheme:
        case "int8":
            return Int8Linear(layer, low, high)
        case "fp8":
            return Fp8Linear(layer, low, high)
        case "int8-weights":
            return Int8WeightLinear(layer)
        case "int4-weights":
            return Int4WeightLinear(layer, next(g for g in GROUPS if layer.in_features % g == 0))


def _compare(
    model: nn.Module,
    layers: Mapping[str, _Layer],
    smaller: Mapping[str, nn.Module],
    batches: Sequence[Any],
    done: Done,
) -> tuple[list[list[Tensor]], dict[str, _Noise]]:
    """The model's results, and each layer's noise where it is given what it was before."""
    noise = {name: _Noise() for name in smaller}

    def note(name: str, x: Tensor) -> None:
        if name in smaller:
            noise[name].add(layers[name].forward(x), smaller[name](x))

    results = []
    with _watching(layers, note):
        for args, kwargs in batches:
            results.append(_tensors(model(*args, **kwargs)))
            done()
    return results, noise


def _kept(layers: Mapping[str, _Layer], noise: Mapping[str, _Noise], budget: float) -> set[str]:
    """The layers that stay: those with the most noise first, as long as all of them together fit."""
    sizes = {name: layer.weight.numel() for name, layer in layers.items()}
    left = budget * sum(sizes.values())
    kept = set()
    for name in sorted(noise, key=lambda name: noise[name].decibels):
        if sizes[name] > left:
            break
        kept.add(name)
        left -= sizes[name]
    return kept


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with another layer wherever it has the old one, which may be all of it."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent.register_module(name, new)
    return new if model is old else model
