"""Attributes of a tensor's own, which are no part of a graph: those of arguments, and those that a function sets."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import fusec
from fusec.errors import UnsupportedOpError
from fusec.frontend.torch import capture


def plain():
    return torch.arange(3.0)


def tagged(tag):
    made = plain()
    made.tag = tag
    return made


def by_tag(x):
    return x * getattr(x, "tag", 1)


def whether(x):
    return x * (2 if hasattr(x, "tag") else 3)


def how_many(x):
    return x * (2 + len(vars(x)))


def sets_argument(x):
    x.tag = 5
    return x * 2


def deletes(x):
    del x.tag
    return x * 2


def sets_result(x):
    made = x * 2
    made.tag = 5
    return made


def sets_and_reads(x):
    made = x * 2
    made.tag = 5
    return made * made.tag


def as_parameter(x):
    return nn.Parameter(x * 2)


def as_buffer(x):
    return nn.Buffer(x * 2)


def other_class(x):
    x.__class__ = nn.Parameter
    return x * 2


def copied(x):
    return copy.copy(x) * copy.deepcopy(x)


def the_same(a, b):
    return type(a) is type(b) and vars(a) == vars(b) and torch.equal(a, b) and a.requires_grad == b.requires_grad


FUNCTIONS = (
    *(by_tag, whether, how_many, sets_argument, sets_result, sets_and_reads, as_parameter, as_buffer, other_class),
    copied,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_attributes_are_those_of_the_call(function):
    """Calls that differ in them one after another, in both orders."""
    for order in ([None, 4, None, 5, 4], [4, None, 5]):
        jitted = fusec.jit(function)
        for tag in order:
            ours, theirs = (plain() if tag is None else tagged(tag) for _ in range(2))
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert the_same(jitted(ours), function(theirs))
            assert the_same(ours, theirs)


def test_an_argument_in_a_container_and_one_that_comes_twice():
    def of_two(pair, x):
        return pair["a"] * getattr(x, "tag", 1)

    jitted = fusec.jit(of_two)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, other in ((plain(), plain()), (tagged(4), plain()), (plain(), tagged(4))):
            assert torch.equal(jitted({"a": one}, other), of_two({"a": one}, other))
        assert torch.equal(jitted({"a": other}, other), of_two({"a": other}, other))


def test_attributes_that_are_not_there_leave_a_call_captured():
    for function in (by_tag, whether, how_many, sets_and_reads):
        jitted = fusec.jit(function, fallback="error")
        assert torch.equal(jitted(plain()), function(plain()))
        assert torch.equal(jitted(plain()), function(plain()))
        assert len(jitted.dispatcher.plans) == 1


@pytest.mark.parametrize("function", [by_tag, whether, how_many, sets_argument, deletes])
def test_what_is_refused_says_which_attribute(function):
    with pytest.raises(UnsupportedOpError, match=r"test_torch_stand_in.py:\d+: .*attribute tag"):
        capture(function, (tagged(4),), {})


def test_an_attribute_that_is_missing_is_the_error_as_written():
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'tag'"):
        fusec.jit(lambda x: x * x.tag)(plain())


def test_hints_for_torch_compile_are_no_attributes_of_the_users():
    def marks(x):
        made = x * 2
        torch._dynamo.mark_static_address(made)
        return made

    x = plain()
    assert torch.equal(fusec.jit(marks, fallback="error")(x), x * 2)
