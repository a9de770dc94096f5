"""Moving a captured graph to a device: text before, text after."""

from __future__ import annotations

from fusec.ir.parse import parse
from fusec.ir.place import place
from fusec.ir.verify import verify

BEFORE = """graph @f(
    %x: f32[4, 8] parameter "self.x",
    %y: f32[4, 8]@cuda:1
) {
  %i = iota() {axis=0} : f32[8]
  %s = mul(%x, f32(2.0)) : f32[4, 8]
  %t = add(%s, %i) : f32[4, 8]
  %u = neg(%y) : f32[4, 8]@cuda:1
  return %t, %u
}"""


def test_everything_on_the_cpu_moves_and_nothing_else() -> None:
    placed = place(parse(BEFORE), "cuda:0")
    verify(placed, "place")
    text = str(placed)
    assert text.count("@cuda:1") == 2
    assert "%x: f32[4, 8]@cuda:0 parameter" in text
    assert "f32(2.0)@cuda:0" in text
    assert "iota" in text
    assert str(parse(text)) == text
    assert place(placed, "cuda:0").outputs[0].type == placed.outputs[0].type


def test_numbers_that_symbols_make_move() -> None:
    text = """graph @f<N in [1, 9]>(%x: f32[N]) {
  %n = extent() {factors=[N]} : f32[]
  %y = div(%x, %n) : f32[N]
  return %y
}"""
    placed = place(parse(text), "cuda:0")
    verify(placed, "place")
    assert str(parse(str(placed))) == str(placed)


def test_library_calls_move() -> None:
    text = """graph @f(%x: f32[4]) {
  %s = extern(%x) {target="aten.to.device", arguments="(($0, torch.device('cpu')), {})"} : f32[4]
  return %s
}"""
    moved = str(place(parse(text), "cuda:0"))
    assert "torch.device('cuda:0')" in moved
    assert moved.count("f32[4]@cuda:0") == 2
