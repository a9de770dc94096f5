"""Convolutions as text that several tests start from."""

from __future__ import annotations

from collections.abc import Sequence


def convolution(
    image: Sequence[int],
    columns: int,
    size: Sequence[int],
    *,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    dtype: str = "f32",
    last: bool = True,
    image_last: bool = True,
    groups: int = 1,
    more: str = "",
    tail: Sequence[str] = (),
) -> str:
    """``%y`` of an image ``%x`` ``[n, places..., channels]`` and weights ``%w``, both with their channels ``last`` or
    in PyTorch's order; sums of halves in f32, rounded behind. ``tail``: lines behind ``%y``, whose last makes ``%z``;
    ``more``: inputs for them. ``groups``: of channels, each with columns of its own; all of them are last
    in the result."""
    batch, *places, channels = image
    rank = len(size)
    stride, dilation = tuple(stride) or (1,) * rank, tuple(dilation) or (1,) * rank
    padding = tuple(padding) or (0,) * rank
    wide = dtype if dtype in ("f32", "f64") else "f32"
    lines = []
    value, shape = "%x", list(image)
    x = f"%x: {dtype}{shape}"
    if not image_last:
        x = f"%x: {dtype}{[batch, channels, *places]}"
        lines.append(f"%l = permute(%x) {{permutation={[0, *range(2, rank + 2), 1]}}} : {dtype}{shape}")
        value = "%l"
    if any(padding):
        around = [0, *padding, 0]
        shape = [n + 2 * p for n, p in zip(shape, around, strict=True)]
        lines.append(f"%p = pad({value}, {dtype}(0.0)) {{low={around}, high={around}}} : {dtype}{shape}")
        value = "%p"
    for k in range(rank):
        reach = (size[k] - 1) * dilation[k] + 1
        shape = [*shape, reach]
        shape[1 + k] = (shape[1 + k] - reach) // stride[k] + 1
        lines.append(f"%s{k} = windows({value}) {{axis={1 + k}, size={reach}, step={stride[k]}}} : {dtype}{shape}")
        value = f"%s{k}"
        if dilation[k] > 1:
            stops, steps = list(shape), [*(1 for _ in shape[:-1]), dilation[k]]
            shape[-1] = size[k]
            cut = f"{{starts={[0] * len(shape)}, stops={stops}, steps={steps}}}"
            lines.append(f"%d{k} = slice({value}) {cut} : {dtype}{shape}")
            value = f"%d{k}"
    inner = [*range(rank + 2, 2 * rank + 2), rank + 1]
    theirs = [*range(1, rank + 2)] if last else [*range(2, rank + 2), 1]
    deep = channels // groups
    weight = [columns, *size, deep] if last else [columns, deep, *size]
    result = [*shape[: rank + 1], columns]
    said = ", dtype=f32" if wide != dtype else ""
    if groups == 1:
        lines.append(f"%h = dot({value}, %w) {{contract={inner}x{theirs}{said}}} : {wide}{result}")
    else:
        each, weights = [*shape[: rank + 1], groups, deep, *shape[rank + 2 :]], [groups, columns // groups, *weight[1:]]
        made, turned = [groups, *result[:-1], columns // groups], [*result[:-1], groups, columns // groups]
        inner, theirs = [a + 1 for a in inner], [a + 1 for a in theirs]
        said = f"contract={inner}x{theirs}, batch=[{rank + 1}]x[0]{said}"
        lines += [
            f"%g = reshape({value}) : {dtype}{each}",
            f"%e = reshape(%w) : {dtype}{weights}",
            f"%q = dot(%g, %e) {{{said}}} : {wide}{made}",
            f"%t = permute(%q) {{permutation={[*range(1, rank + 2), 0, rank + 2]}}} : {wide}{turned}",
            f"%h = reshape(%t) : {wide}{result}",
        ]
    lines.append(
        f"%y = cast(%h) : {dtype}{result}" if wide != dtype else f"%y = mul(%h, {dtype}(1.0)) : {dtype}{result}"
    )
    lines += [line.replace("RESULT", f"{dtype}{result}") for line in tail]
    inputs = ", ".join((x, f"%w: {dtype}{weight}", *([more] if more else ())))
    body = "\n  ".join(lines)
    return f"graph @convolution({inputs}) {{\n  {body}\n  return {'%z' if tail else '%y'}\n}}"
