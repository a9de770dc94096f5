"""Writes or compares the golden set.

    python -m tests.golden                          # generate all, compare with hashes.txt; 1 if anything differs
    python -m tests.golden --only attention --target cuda:sm_90
    python -m tests.golden --update                 # write hashes.txt
    python -m tests.golden --against DIR [--diff]   # compare with what another checkout generates, text by text

The texts lie in build/golden afterwards, a folder for each case and target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .compare import HASHES, against, compared, read_hashes, write_hashes
from .texts import generated, hashes_of, write_texts

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name has this in it")
    parser.add_argument("--target", action="append", default=[], help="this target alone (again for more)")
    parser.add_argument("--update", action="store_true", help="write the hashes of what is generated")
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout whose texts are compared with")
    parser.add_argument("--diff", action="store_true", help="with --against: show what differs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "golden", help="where the texts are written")
    arguments = parser.parse_args()
    if arguments.diff and not arguments.against:
        parser.error("--diff needs --against DIR")
    found: dict[tuple[str, str], str] = {}
    for case, target, texts in generated(arguments.only, tuple(arguments.target)):
        if (case.name, target) in found:
            raise SystemExit(f"two cases are named {case.name}")
        found[case.name, target] = hashes_of(texts)
        write_texts(arguments.out, case.name, target, texts)
    if not found:
        parser.error("no case has this name and target")
    if arguments.update:
        whole = not arguments.only and not arguments.target
        write_hashes(HASHES, found if whole else read_hashes(HASHES) | found)
        print(f"{len(found)} written")
        return 0
    if arguments.against:
        lines = against(arguments.against, arguments.out, found, arguments.only, arguments.target, arguments.diff)
    else:
        known = read_hashes(HASHES)
        asked = not arguments.only and not arguments.target
        lines = compared({key: value for key, value in known.items() if asked or key in found}, found)
    print("\n".join([*lines, f"{len(found)} compared, {len(lines)} lines of difference"]))
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main())
