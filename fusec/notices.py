# SPDX-License-Identifier: Apache-2.0
"""Every warning a user can see. They name the innermost line of the user's code that is being run."""

from __future__ import annotations


class FusecWarning(UserWarning):
    """Base of every warning that fusec gives."""


class RunsAsWritten(FusecWarning):
    """Calls of a function run as written instead of compiled. Told once for a function and a reason."""


class InternalErrorWarning(FusecWarning, RuntimeWarning):
    """fusec itself failed while it captured or compiled a function, which runs as written instead: a bug in fusec."""


class SettingWarning(FusecWarning):
    """An environment variable that fusec does not have, a folder of its own that it can't use, or a tool that is
    missing and that it does without."""
