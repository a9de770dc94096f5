"""Compares what a model returns through fusec with what it returns as written: structure, classes, and every tensor."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

ROUNDINGS = 4
"""Roundings of a tensor's largest element that its error may pass twice eager's by: where eager happens to be exact."""
CANCELLED = 4
"""Times eager's error where that is larger than each number: a sum that cancels (the gradient of a bias of keys is 0)
leaves roundings alone, and other orders of additions leave others."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def parts(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """The parts of a result with their places: a container's class, then what it holds."""
    if isinstance(value, (Tensor, *_PLAIN)):
        yield path, value
        return
    yield f"{path}: class", type(value).__qualname__
    if isinstance(value, Mapping):
        held = [(f"{path}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, list | tuple | set):
        held = [(f"{path}[{k}]", each) for k, each in enumerate(value)]
    elif is_dataclass(value):
        held = [(f"{path}.{f.name}", getattr(value, f.name)) for f in fields(value)]
    else:
        held = [(f"{path}.{name}", each) for name, each in sorted(getattr(value, "__dict__", {}).items())]
    for place, each in held:
        if not callable(each):
            yield from parts(each, place)


def tensors(value: Any) -> list[Tensor]:
    return [each for _, each in parts(value) if isinstance(each, Tensor)]


def differences(found: Any, eager: Any, exact: Any) -> list[str]:
    """What is wrong with ``found``. ``exact`` is the same in float64, or None where the model has no such form."""
    got, wanted = list(parts(found)), list(parts(eager))
    if [place for place, _ in got] != [place for place, _ in wanted]:
        here = dict.fromkeys([p for p, _ in got])
        there = dict.fromkeys([p for p, _ in wanted])
        return [f"{p}: only {'with' if p in here else 'without'} fusec" for p in here.keys() ^ there.keys()] or [
            "order"
        ]
    precise = dict(parts(exact)) if exact is not None else {}
    lines = []
    for (place, a), (_, b) in zip(got, wanted, strict=True):
        text = _tensor(a, b, precise.get(place)) if isinstance(b, Tensor) and isinstance(a, Tensor) else _plain(a, b)
        if text:
            lines.append(f"{place}: {text}")
    return lines


def _plain(a: Any, b: Any) -> str:
    return "" if type(a) is type(b) and (a == b or a != a) else f"{a!r}, not {b!r}"


def _tensor(a: Tensor, b: Tensor, exact: Any) -> str:
    for name in ("dtype", "shape", "device", "requires_grad", "layout"):
        if getattr(a, name) != getattr(b, name):
            return f"{name} {getattr(a, name)}, not {getattr(b, name)}"
    if a.layout is torch.strided and a.stride() != b.stride() and not _same_order(a, b):
        return f"strides {a.stride()}, not {b.stride()}"
    a, b = a.detach(), b.detach()
    if not b.is_floating_point():
        return "" if torch.equal(a, b) else f"{int((a != b).sum())} of {b.numel()} elements differ"
    if not torch.equal(a.isfinite(), b.isfinite()) or not torch.equal(a.isnan(), b.isnan()):
        return "NaN or infinity at other places"
    precise = isinstance(exact, Tensor) and exact.shape == b.shape
    reference = (exact if precise else b).detach().double()
    seen = b.isfinite() & reference.isfinite()
    if not seen.any():
        return ""
    error, usual = ((x.double() - reference)[seen].abs().max().item() for x in (a, b))
    rounding = torch.finfo(b.dtype).eps * reference[seen].abs().max().item()
    times = 2 if usual < reference[seen].abs().max().item() else CANCELLED
    limit = times * usual + ROUNDINGS * rounding if precise else 64 * rounding
    return "" if error <= limit else f"error {error:.2g}, eager's {usual:.2g}, a rounding is {rounding:.2g}"


def _same_order(a: Tensor, b: Tensor) -> bool:
    """Whether strides differ along axes of one element only."""
    return all(n <= 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def in_float64(value: Any) -> Any:
    """A copy of a module or of arguments with float tensors in float64."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: in_float64(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(in_float64(each) for each in value)
    return value
