"""Mutated files: ``python tests/fuzz_artifact.py COUNT [SEED]`` changes a compiled file COUNT times and opens each.

Opening must give the function, or one error of one line (ArtifactError; SignatureError for weights that do not fit):
no crash, no other exception, no file left behind.
Machine code is never run here: a loader in its place records that it was asked for code of another hash, which would
be code that the file's author did not write. Each batch runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import fusec
from fusec import loading
from fusec.cli.inspect import describe_file
from fusec.errors import ArtifactError, SignatureError
from fusec.runtime import artifact

BATCH = 250
SECONDS = 300

GRAPH_SPEC = ("B:1..9", 24)
_WORDS = (
    "-1",
    "0",
    "1",
    "1e308",
    "null",
    "true",
    '""',
    "[]",
    "{}",
    "99999999999999999999",
    '"../x"',
    '"B*B"',
    "[[[]]]",
)
_NAMES = ("../../evil", "/etc/evil", "a\\b", "pieces/0/../../evil", "kernels.bin", "x" * 300, "", "\x00", "CON")


WEIGHTS = {"weights": np.linspace(-1, 1, 24 * 8, dtype=np.float32).reshape(24, 8)}


def make(path: Path, *, inside: bool) -> Path:
    """The file that is mutated: two pieces, weights or none, a constant."""
    weights = WEIGHTS["weights"]

    def function(x: Any) -> Any:
        return np.exp(np.squeeze(x) @ weights), 3

    fusec.compile(function, fusec.TensorSpec(GRAPH_SPEC)).save(path, weights=inside)
    return path


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def cut_out(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 4096) :]


def repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start : start + rng.randrange(1, 4096)] * 2 + data[start:]


def directory(data: bytes, rng: random.Random) -> bytes:
    """Numbers in the zip's directory, where sizes, offsets and methods stand."""
    start = data.rfind(b"PK\x05\x06")
    first = struct.unpack_from("<I", data, start + 16)[0]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(first, len(changed) - 4)
        value = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data), rng.getrandbits(32)))
        struct.pack_into("<I", changed, place, value)
    return bytes(changed)


def records(data: bytes, rng: random.Random) -> bytes:
    """The JSON of the manifest or of a program, with sizes and hashes that fit: what a forger would write."""
    members = _members(data)
    manifest = json.loads(members.pop("manifest.json"))
    manifest.pop("members")
    name = rng.choice(("manifest.json", "program.json", "pieces/1/program.json"))
    record = manifest if name == "manifest.json" else json.loads(members[name])
    for _ in range(rng.choice((1, 1, 2, 5))):
        _change(record, rng)
    if name != "manifest.json":
        members[name] = json.dumps(record).encode()
    return _written({k: v for k, v in manifest.items() if k != "format"}, members)


def contents(data: bytes, rng: random.Random) -> bytes:
    """The bytes of a member that is not machine code, with sizes and hashes that fit."""
    members = _members(data)
    manifest = json.loads(members.pop("manifest.json"))
    name = rng.choice([n for n in members if not n.endswith("kernels.bin") and members[n]])
    members[name] = rng.choice((flip_bits, cut, cut_out, repeat))(members[name], rng)
    return _written({k: v for k, v in manifest.items() if k not in ("format", "members")}, members)


def names(data: bytes, rng: random.Random) -> bytes:
    members = _members(data)
    manifest = json.loads(members.pop("manifest.json"))
    old = rng.choice(sorted(members))
    new = rng.choice(_NAMES)
    members[new] = members.pop(old) if rng.random() < 0.5 else members[old]
    return _written({k: v for k, v in manifest.items() if k not in ("format", "members")}, members)


def bomb(data: bytes, rng: random.Random) -> bytes:
    """A member that unpacks to more than it says."""
    size = rng.choice((1 << 24, 1 << 26))
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packed.compress(bytes(size)) + packed.flush()
    return data[: rng.randrange(len(data))] + body + data[rng.randrange(len(data)) :]


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits,
    cut,
    cut_out,
    repeat,
    directory,
    records,
    records,
    records,
    contents,
    names,
    bomb,
)


def _members(data: bytes) -> dict[str, bytes]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _written(manifest: dict[str, Any], members: dict[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        artifact.write(Path(folder) / "f", manifest, members)
        return (Path(folder) / "f").read_bytes()


def _change(record: Any, rng: random.Random) -> None:
    """One place of a tree of lists and dicts: replaced, removed, doubled, or exchanged with its neighbour."""
    while isinstance(record, dict | list) and record:
        key: Any = rng.choice(list(record)) if isinstance(record, dict) else rng.randrange(len(record))
        inner = record[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            record = inner
            continue
        how = rng.randrange(5)
        if how == 0:
            del record[key]
        elif how == 1 and type(inner) is int:
            record[key] = inner + rng.choice((-1, 1, 2, 1 << 31, 1 << 62, -(1 << 63)))
        elif how == 2 and isinstance(record, list):
            record.insert(key, inner)
        elif how == 3 and isinstance(record, list):
            record[key], record[-1] = record[-1], inner
        else:
            record[key] = json.loads(rng.choice(_WORDS))
        return


class Checked:
    """Stands for the loader of machine code: it must only be asked for what the author wrote."""

    def __init__(self, data: bytes) -> None:
        self.known = {sha256(code).digest() for name, code in _members(data).items() if name.endswith("kernels.bin")}
        self.wrong = 0

    def __call__(self, code: bytes) -> Any:
        if code and sha256(code).digest() not in self.known:
            if sha256(code[40:]).digest() != code[8:40]:
                raise ArtifactError("the bytes of a compiled CPU module are damaged: their checksum is wrong")
            self.wrong += 1
        return _Nothing()


class _Nothing:
    """A module whose kernels do nothing."""

    def function(self, name: str, device: int | None = None) -> Callable[..., None]:
        return lambda *addresses: None


def _load_with_weights(path: Path) -> Any:
    return fusec.load(path, weights=WEIGHTS)


def try_one(path: Path, loader: Checked, *, inside: bool) -> str:
    """What came of a file, with its weights ``inside`` or given: ``loaded``, ``refused``, or what is wrong."""
    outcome = "loaded"
    for look in (fusec.load if inside else _load_with_weights, describe_file):
        try:
            look(path)  # type: ignore[operator]
        except (ArtifactError, SignatureError) as error:
            outcome = "refused"
            if "\n" in str(error) or len(str(error)) > 2000:
                return f"{look.__name__}: an error of {len(str(error))} characters"
        except BaseException as error:
            return f"{look.__name__}: {type(error).__name__}: {str(error)[:200]}"
    return "it would have run other machine code" if loader.wrong else outcome


def run_batch(source: Path, count: int, seed: int) -> Counter[str]:
    """Outcomes of ``count`` mutations, by kind of mutation."""
    data = source.read_bytes()
    loader = Checked(data)
    loading.load_module = loader  # type: ignore[assignment]
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.fusec"
        for number in range(seed, seed + count):
            rng = random.Random(number)
            mutate = rng.choice(MUTATIONS)
            path.write_bytes(mutate(data, rng))
            outcome = try_one(path, loader, inside=source.stem == "inside")
            loader.wrong = 0
            found[outcome if outcome in ("loaded", "refused") else f"seed {number}, {mutate.__name__}: {outcome}"] += 1
        if os.listdir(folder) != ["m.fusec"]:
            found[f"seeds from {seed}: files were left: {os.listdir(folder)}"] += 1
    return found


def main(count: int, seed: int) -> int:
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        sources = [make(Path(folder) / f"{name}.fusec", inside=name == "inside") for name in ("inside", "given")]
        for number, start in enumerate(range(seed, seed + count, BATCH)):
            source = sources[number % 2]
            size = min(BATCH, seed + count - start)
            command = [sys.executable, __file__, "--batch", str(source), str(size), str(start)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
            if done.returncode:
                total[f"seeds {start} to {start + size - 1}: exit {done.returncode}: {done.stderr[-300:]}"] += 1
            else:
                total.update(json.loads(done.stdout))
            print(f"{sum(total.values())} of {count}: {total['loaded']} loaded, {total['refused']} refused", flush=True)
    wrong = {what: n for what, n in total.items() if what not in ("loaded", "refused")}
    for what in wrong:
        print(what)
    return bool(wrong)


if __name__ == "__main__":
    if sys.argv[1] == "--batch":
        print(json.dumps(run_batch(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
    else:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
