"""Work in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def at_once(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Calls ``work`` with each argument in a thread of its own, and raises the first error of any."""
    given = list(arguments)
    barrier = threading.Barrier(len(given))
    errors: list[BaseException] = []

    def run(argument: Any) -> None:
        try:
            barrier.wait()
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(argument,)) for argument in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
