"""Everything on the way from a Python function to machine code, as text.

Prints it all:
    python examples/ir_dump.py
or any program writes it to a folder, numbered by stage:
    FUSEC_DUMP=dump python examples/mlp.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import fusec


def normalise(x: Tensor, gain: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
    return torch.relu(centred * scale * gain)


def title(text: str) -> None:
    print(f"\n{'-' * 8} {text} {'-' * (100 - len(text))}")


def main() -> dict[str, str]:
    """Prints the graph, its text after each pass, and each kernel's tile IR and source; returns them by title."""
    graph = fusec.trace(normalise, torch.randn(128, 512), torch.randn(512))
    text = str(graph)
    assert str(fusec.parse(text)) == text, "the text is the graph: parsing it gives the graph back"
    shown = {"captured": text}

    low = fusec.lower(graph)
    shown |= low.stages
    for kernel in low.kernels:
        tiles = " ".join(f"{name}={size}" for name, size in kernel.schedule.items())
        shown[f"kernel {kernel.name}: {tiles}"] = kernel.ir
        shown[f"kernel {kernel.name}: TVM"] = kernel.source
    for name, content in shown.items():
        title(name)
        print(content)
    return shown


if __name__ == "__main__":
    main()
