"""Graphs of scan kernels: every monoid, both directions, along memory and across; whole, in chunks and parts."""

from __future__ import annotations

from fusec.passes.families.scan.schedule.gpu import GpuScanSchedule
from fusec.passes.schedule.base import GpuSchedule
from fusec.passes.schedule.launch import Launch


def scan(op: str, shape: tuple[int, ...], axis: int, dtype: str = "f32", *, reverse: bool = False) -> str:
    """``op(exp(-|x|)) * x``: maps before and after."""
    t = f"{dtype}{list(shape)}"
    return f"""graph @scan(%x: {t}) {{
  %a = abs(%x) : {t}
  %n = neg(%a) : {t}
  %e = exp(%n) : {t}
  %s = {op}(%e) {{axis={axis}, reverse={str(reverse).lower()}}} : {t}
  %y = mul(%s, %x) : {t}
  return %y
}}"""


def plain(op: str, shape: tuple[int, ...], axis: int, dtype: str, *, reverse: bool = False) -> str:
    t = f"{dtype}{list(shape)}"
    return f"""graph @plain(%x: {t}) {{
  %s = {op}(%x) {{axis={axis}, reverse={str(reverse).lower()}}} : {t}
  return %s
}}"""


def chain(rows: int, length: int) -> str:
    """Positions of the largest so far: a scan of what another one gives."""
    t, i = f"f32[{rows}, {length}]", f"i32[{rows}, {length}]"
    return f"""graph @chain(%x: {t}) {{
  %m = cummax(%x) {{axis=1, reverse=false}} : {t}
  %f = eq(%x, %m) : bool[{rows}, {length}]
  %j = iota() {{axis=1}} : i32[1, {length}]
  %p = select(%f, %j, i32(0)) : {i}
  %s = cummax(%p) {{axis=1, reverse=false}} : {i}
  %w = cast(%s) : i64[{rows}, {length}]
  return %m, %w
}}"""


def recurrence(shape: tuple[int, ...], axis: int, dtype: str = "f32", *, reverse: bool = False) -> str:
    """Factors and what is added are made by maps, the result is read by one."""
    t, start = f"{dtype}{list(shape)}", f"{dtype}{[1 if a == axis else n for a, n in enumerate(shape)]}"
    return f"""graph @recurrence(%x: {t}, %a: {t}, %h: {start}) {{
  %f = sin(%a) : {t}
  %e = abs(%x) : {t}
  %s = recurrence(%e, %f, %h) {{axis={axis}, reverse={str(reverse).lower()}}} : {t}
  %y = mul(%s, %x) : {t}
  return %y
}}"""


def last(shape: tuple[int, ...], axis: int) -> str:
    """The last result alone."""
    t, start = f"f32{list(shape)}", f"f32{[1 if a == axis else n for a, n in enumerate(shape)]}"
    return f"""graph @last(%x: {t}, %a: {t}, %h: {start}) {{
  %f = sin(%a) : {t}
  %s = recurrence(%x, %f, %h) {{axis={axis}, last=true}} : {start}
  return %s
}}"""


def columns(m: int, n: int, reverse: bool) -> str:
    """Along a strided axis of a transposed view."""
    return f"""graph @columns(%x: f32[{m}, {n}]) {{
  %t = permute(%x) {{permutation=[1, 0]}} : f32[{n}, {m}]
  %s = cumsum(%t) {{axis=0, reverse={str(reverse).lower()}}} : f32[{n}, {m}]
  %y = add(%s, f32(1.0)) : f32[{n}, {m}]
  return %y
}}"""


def two(rows: int, length: int) -> str:
    """A sum and a maximum, of what maps make, which is read again."""
    t = f"f32[{rows}, {length}]"
    return f"""graph @two(%x: {t}) {{
  %e = tanh(%x) : {t}
  %s = cumsum(%e) {{axis=1}} : {t}
  %m = cummax(%e) {{axis=1}} : {t}
  %d = sub(%s, %m) : {t}
  %y = mul(%d, %e) : {t}
  return %y, %s
}}"""


def _cut(beside: int, chunk: int, parts: int = 1, *, across: bool = False, relay: bool = False) -> GpuSchedule:
    return GpuScanSchedule(beside, chunk, Launch(4, 1), across, parts, relay)


CASES = {
    **{f"{op} of rows": scan(op, (9, 77), 1) for op in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")},
    **{f"{op} down": scan(op, (9, 77), 1, reverse=True) for op in ("cumsum", "logcumsumexp")},
    **{f"{op} of columns": scan(op, (77, 45), 0) for op in ("cumsum", "cummax")},
    "cumsum of columns down": scan("cumsum", (77, 45), 0, reverse=True),
    "cumsum between": scan("cumsum", (3, 50, 17), 1),
    "cumsum bf16": scan("cumsum", (5, 130), 1, "bf16"),
    "cumsum f16 of columns": scan("cumsum", (130, 5), 0, "f16"),
    "cumsum f64": scan("cumsum", (5, 130), 1, "f64"),
    "cumsum i64": plain("cumsum", (5, 130), 1, "i64"),
    "cumprod u8": plain("cumprod", (5, 130), 0, "u8"),
    "cumsum of one": scan("cumsum", (7, 1), 1),
    "cumsum of a long row": scan("cumsum", (2, 20000), 1),
    "cumsum of long columns": plain("cumsum", (1500, 3), 0, "f32"),
    "cummax and its positions": chain(5, 300),
    "recurrence": recurrence((7, 100), 0),
    "recurrence of rows down": recurrence((9, 17), 1, reverse=True),
    "recurrence between": recurrence((3, 20, 130), 1, "bf16"),
    "last of a recurrence": last((7, 100), 0),
    "last of a recurrence of rows": last((3, 17), 1),
    "recurrence f64": recurrence((5, 3), 0, "f64", reverse=True),
    "cumsum of a transposed view": columns(65, 33, False),
    "cumsum down a transposed view": columns(65, 33, True),
}

CUT = {
    "cumsum in chunks": (scan("cumsum", (5, 300), 1), _cut(2, 64)),
    "cumsum in even chunks": (scan("cumsum", (4, 256), 1), _cut(2, 64)),
    "cumsum down in chunks": (scan("cumsum", (5, 300), 1, reverse=True), _cut(2, 64)),
    "logcumsumexp in chunks": (scan("logcumsumexp", (5, 300), 1), _cut(2, 64)),
    "cumsum in parts": (scan("cumsum", (3, 1000), 1), _cut(1, 64, 4)),
    "cumprod in parts": (scan("cumprod", (3, 1000), 1), _cut(2, 64, 8)),
    "cummax in parts": (scan("cummax", (1, 1000), 1), _cut(1, 64, 4)),
    "cumsum down in parts": (scan("cumsum", (3, 1000), 1, reverse=True), _cut(1, 64, 4)),
    "logcumsumexp in parts": (scan("logcumsumexp", (3, 1000), 1), _cut(1, 64, 4)),
    "logcumsumexp down in parts": (scan("logcumsumexp", (1, 1000), 1, reverse=True), _cut(1, 64, 8)),
    "cumsum of columns in parts": (scan("cumsum", (1000, 5), 0), _cut(4, 32, 8, across=True)),
    "cumsum of columns down in parts": (scan("cumsum", (1000, 5), 0, reverse=True), _cut(4, 32, 8, across=True)),
    "cumsum relayed": (scan("cumsum", (3, 1000), 1), _cut(1, 64, 16, relay=True)),
    "cumsum of rows side by side relayed": (scan("cumsum", (3, 1000), 1), _cut(2, 64, 16, relay=True)),
    "cumsum down relayed": (scan("cumsum", (3, 1000), 1, reverse=True), _cut(1, 128, 8, relay=True)),
    "cumprod of bf16 relayed": (scan("cumprod", (1, 1000), 1, "bf16"), _cut(1, 64, 16, relay=True)),
    "cummax relayed": (scan("cummax", (2, 1024), 1), _cut(1, 64, 16, relay=True)),
    "cummin of i32 relayed": (plain("cummin", (3, 999), 1, "i32"), _cut(1, 128, 8, relay=True)),
    "cumsum of columns relayed": (scan("cumsum", (1000, 5), 0), _cut(4, 64, 16, across=True, relay=True)),
    "cumsum of columns down relayed": (
        scan("cumsum", (999, 5), 0, reverse=True),
        _cut(4, 64, 16, across=True, relay=True),
    ),
    "cumsum relayed by squads": (scan("cumsum", (2, 1000), 1), _cut(1, 4, 250, relay=True)),
    "cumsum down relayed by squads": (scan("cumsum", (2, 999), 1, reverse=True), _cut(2, 4, 250, relay=True)),
    "two scans relayed": (two(3, 1000), _cut(1, 128, 8, relay=True)),
    "chain in chunks": (chain(5, 300), _cut(2, 64)),
}
"""Graphs and schedules that they would not have at this size."""
