# SPDX-License-Identifier: Apache-2.0
"""Texts of files and users, made fit for the page."""

from __future__ import annotations

from html import escape


def escaped(text: str) -> str:
    """As HTML text, without control characters."""
    return escape(plain(text))


def plain(text: str) -> str:
    """No control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
