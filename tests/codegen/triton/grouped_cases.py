"""Products of rows in groups: sizes that are known, ends that are data, empty groups and groups of one row."""

from __future__ import annotations


def known(kind: str, sizes: list[int], k: int, n: int, rest: int = 0) -> str:
    """Gate and up with SwiGLU and a factor for each row, then down again."""
    m, groups = sum(sizes) + rest, len(sizes)
    given = f"rhs_contract=1, sizes={sizes}"
    return f"""graph @known(
  %x: {kind}[{m}, {k}], %v: {kind}[{groups}, {k}, {n}], %w: {kind}[{groups}, {k}, {n}], %s: {kind}[{m}, 1],
  %d: {kind}[{groups}, {k}, {n}]) {{
  %a = grouped_dot(%x, %v) {{{given}}} : {kind}[{m}, {n}]
  %b = grouped_dot(%x, %w) {{{given}}} : {kind}[{m}, {n}]
  %c = silu(%a) : {kind}[{m}, {n}]
  %e = mul(%c, %b) : {kind}[{m}, {n}]
  %f = mul(%e, %s) : {kind}[{m}, {n}]
  %g = mul(%f, {kind}(0.001)) : {kind}[{m}, {n}]
  %h = grouped_dot(%g, %d) {{rhs_contract=2, sizes={sizes}}} : {kind}[{m}, {k}]
  %y = mul(%h, {kind}(0.1)) : {kind}[{m}, {k}]
  return %y
}}"""


def data(kind: str, m: int, groups: int, k: int, n: int, each: int) -> str:
    """Groups of some ``each`` rows; those behind the last group are 0, to which a bias is added."""
    return f"""graph @data(%x: {kind}[{m}, {k}], %w: {kind}[{groups}, {n}, {k}], %o: i32[{groups}], %b: {kind}[{n}]) {{
  %i = iota() {{axis=0}} : i32[{groups}]
  %j = mul(%i, i32({each})) : i32[{groups}]
  %ends = add(%j, %o) : i32[{groups}]
  %p = grouped_dot(%x, %w, %ends) {{rhs_contract=2}} : {kind}[{m}, {n}]
  %y = add(%p, %b) : {kind}[{m}, {n}]
  return %y
}}"""


def experts(kind: str, tokens: int, chosen: int, groups: int, k: int, n: int) -> str:
    """A loop over experts, of which each token has some by data: gate and up are halves of one product, then down."""
    rows = tokens * chosen
    lines = []
    for e in range(groups):
        base = f"%y{e - 1}" if e else "%zero"
        lines.append(f"""  %eq{e} = eq(%chosen, i32({e})) : bool[{tokens}, {chosen}]
  %m{e} = reshape(%eq{e}) : bool[{rows}]
  %wa{e} = slice(%w) {{starts=[{e}, 0, 0], stops=[{e + 1}, {2 * n}, {k}], steps=[1, 1, 1]}} : {kind}[1, {2 * n}, {k}]
  %w{e} = reshape(%wa{e}) : {kind}[{2 * n}, {k}]
  %va{e} = slice(%v) {{starts=[{e}, 0, 0], stops=[{e + 1}, {k}, {n}], steps=[1, 1, 1]}} : {kind}[1, {k}, {n}]
  %v{e} = reshape(%va{e}) : {kind}[{k}, {n}]
  %h{e} = dot(%rows, %w{e}) {{contract=[1]x[1]}} : {kind}[{rows}, {2 * n}]
  %g{e} = slice(%h{e}) {{starts=[0, 0], stops=[{rows}, {n}], steps=[1, 1]}} : {kind}[{rows}, {n}]
  %u{e} = slice(%h{e}) {{starts=[0, {n}], stops=[{rows}, {2 * n}], steps=[1, 1]}} : {kind}[{rows}, {n}]
  %s{e} = silu(%g{e}) : {kind}[{rows}, {n}]
  %t{e} = mul(%s{e}, %u{e}) : {kind}[{rows}, {n}]
  %d{e} = dot(%t{e}, %v{e}) {{contract=[1]x[1]}} : {kind}[{rows}, {k}]
  %f{e} = mul(%d{e}, %p) : {kind}[{rows}, {k}]
  %z{e} = mul(%f{e}, {kind}(0.01)) : {kind}[{rows}, {k}]
  %y{e} = scatter_add_where({base}, %tok, %z{e}, %m{e}) : {kind}[{tokens}, {k}]""")
    body = "\n".join(lines)
    return f"""graph @experts(
  %x: {kind}[{tokens}, {k}], %o: i32[{tokens}, {chosen}], %w: {kind}[{groups}, {2 * n}, {k}],
  %v: {kind}[{groups}, {k}, {n}], %p: {kind}[{rows}, 1]) {{
  %chosen = remainder(%o, i32({groups + 1})) : i32[{tokens}, {chosen}]
  %i = iota() {{axis=0}} : i64[{rows}]
  %tok = floordiv(%i, i64({chosen})) : i64[{rows}]
  %rows = gather(%x, %tok) {{axis=0}} : {kind}[{rows}, {k}]
  %zero = broadcast({kind}(0.0)) : {kind}[{tokens}, {k}]
{body}
  return %y{groups - 1}
}}"""


def apart(kind: str, m: int, groups: int, k: int, n: int, each: int) -> str:
    """Gate and up, whose matrices are arrays of their own."""
    names = [f"%{name}{e}" for name in "gu" for e in range(groups)]
    given = ", ".join(f"{name}: {kind}[{n}, {k}]" for name in names)
    end = f"{{rhs_contract=2, apart={groups}}} : {kind}[{m}, {n}]"
    return f"""graph @apart(%x: {kind}[{m}, {k}], {given}, %o: i32[{groups}]) {{
  %i = iota() {{axis=0}} : i32[{groups}]
  %j = mul(%i, i32({each})) : i32[{groups}]
  %ends = add(%j, %o) : i32[{groups}]
  %a = grouped_dot(%x, {", ".join(names[:groups])}, %ends) {end}
  %b = grouped_dot(%x, {", ".join(names[groups:])}, %ends) {end}
  %s = silu(%a) : {kind}[{m}, {n}]
  %y = mul(%s, %b) : {kind}[{m}, {n}]
  %z = mul(%y, {kind}(0.01)) : {kind}[{m}, {n}]
  return %z
}}"""


def outer(kind: str, m: int, groups: int, p: int, q: int, each: int) -> str:
    """The gradient of each group's matrix, of groups of some ``each`` rows, an empty one among them."""
    return f"""graph @outer(%x: {kind}[{m}, {p}], %y: {kind}[{m}, {q}], %o: i32[{groups}]) {{
  %i = iota() {{axis=0}} : i32[{groups}]
  %j = mul(%i, i32({each})) : i32[{groups}]
  %ends = add(%j, %o) : i32[{groups}]
  %g = grouped_outer(%x, %y, %ends) : {kind}[{groups}, {p}, {q}]
  %z = mul(%g, {kind}(0.1)) : {kind}[{groups}, {p}, {q}]
  return %z
}}"""


GROUPED = {
    "outer": outer("bf16", 150, 6, 64, 80, 20),
    "outer_odd": outer("f16", 77, 3, 33, 17, 30),
    "outer_f32": outer("f32", 100, 5, 37, 30, 19),
    "outer_long": outer("bf16", 700, 2, 32, 64, 400),
    "outer_long_f32": outer("f32", 500, 2, 32, 24, 290),
    "grouped_apart": apart("bf16", 90, 3, 40, 48, 25),
    "grouped_apart_f32": apart("f32", 30, 2, 17, 19, 12),
    "experts": experts("bf16", 37, 2, 3, 32, 24),
    "experts_f32": experts("f32", 7, 1, 4, 16, 16),
    "experts_in_blocks": experts("bf16", 2100, 2, 3, 16, 16),
    "grouped_known": known("bf16", [3, 0, 1, 140, 56], 64, 96),
    "grouped_odd": known("f16", [0, 5, 33, 1], 40, 72),
    "grouped_known_rest": known("f32", [7, 0, 20], 33, 21, rest=9),
    "grouped_data": data("bf16", 150, 6, 64, 80, 20),
    "grouped_data_f32": data("f32", 100, 5, 37, 30, 19),
}
