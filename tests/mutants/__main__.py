"""``python -m tests.mutants``: see ``--help``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests' helpers are imported by their plain names

from mutants.run import main

if __name__ == "__main__":
    sys.exit(main())
