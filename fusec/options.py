# SPDX-License-Identifier: Apache-2.0
"""Values of options, checked where users give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from typing import Literal, get_args

from fusec.errors import OptionError

Precision = Literal["ieee", "tf32", "bf16", "f16"]
"""How matmuls and convolutions of f32 are computed."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """OptionError for a value that is none of the choices."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        *others, last = map(repr, choices)
        raise OptionError(f"{name}={value!r:.100}; it is {', '.join(others)} or {last}")


def check_switch(name: str, value: object) -> None:
    """OptionError for a value that is neither True nor False."""
    check_choice(name, value, (True, False))


def check_path(name: str, value: object, of: str = "file") -> None:
    """OptionError for what is no path; ``of`` a file or a folder."""
    if not isinstance(value, str | PathLike) or not str(value):
        raise OptionError(f"{name}={value!r:.100}; it is the path of a {of}")


def check_mapping(name: str, value: object, of: str) -> None:
    """OptionError for what is neither a mapping from names nor None. ``of``: what one looks like."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise OptionError(f"{name}={value!r:.100}; it maps names, as {of}")
