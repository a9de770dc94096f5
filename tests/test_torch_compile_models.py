"""Language and vision models of ``transformers``, small and with random weights, through ``torch.compile``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sweeps import by_night

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fusec import torch_compile  # noqa: E402
from fusec.runtime.program import Call, KernelReport  # noqa: E402
from fusec.torch_compile import gathering  # noqa: E402
from fusec.torch_graphs import CompiledGraph  # noqa: E402

TOKENS = 200
_BLOCK = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
_TEXT = {**_BLOCK, "vocab_size": TOKENS, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Model:
    """A model, a call of it, and what its kernels have to be.

    attentions: attention kernels. activations: the op that marks the activation of its MLPs, and how many MLPs have
    it. library: what may run through the library.
    """

    make: Callable[[], tuple[Any, dict[str, Any]]]
    attentions: int
    activations: tuple[str, int]
    library: frozenset[str] = frozenset()


def ids(length: int = 17) -> Any:
    return torch.randint(0, TOKENS, (2, length))


def padded(length: int = 17) -> Any:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, 9:] = 0
    return mask


def gpt2() -> tuple[Any, dict[str, Any]]:
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, vocab_size=TOKENS, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids(), "use_cache": False}


def llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(**_TEXT, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), {"input_ids": ids(), "use_cache": False}


def bert() -> tuple[Any, dict[str, Any]]:
    return transformers.BertModel(transformers.BertConfig(**_TEXT)), {"input_ids": ids(), "attention_mask": padded()}


def vit() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViTConfig(**_BLOCK, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def t5() -> tuple[Any, dict[str, Any]]:
    sizes = {"num_layers": 1, "d_model": 64, "num_heads": 4, "d_kv": 16, "d_ff": 96}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, vocab_size=TOKENS))
    return model, {"input_ids": ids(), "decoder_input_ids": ids(9), "use_cache": False}


def mixtral() -> tuple[Any, dict[str, Any]]:
    config = transformers.MixtralConfig(**_TEXT, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config), {"input_ids": ids(), "use_cache": False}


_ROUTING = frozenset({"aten.topk.default", "aten.sort.default", "aten.histc.default", "aten.index_put.default"})
_EXPERTS = frozenset({"transformers.grouped_mm_fallback.default"})
MODELS = {
    "gpt2": Model(gpt2, 2, ("tanh", 2)),
    "llama": Model(llama, 2, ("exp", 2)),
    "bert": Model(bert, 2, ("erf", 2)),
    "vit": Model(vit, 2, ("erf", 2), frozenset({"aten.convolution.default"})),
    "t5": Model(t5, 3, ("maximum", 2)),
    "mixtral": Model(mixtral, 2, ("exp", 0), _ROUTING | _EXPERTS),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def calls(graphs: list[CompiledGraph]) -> set[str]:
    """The library calls of all graphs; fusec's own are not among them."""
    steps = [step for graph in graphs for exe in graph.executables for step in exe.program.steps]
    return {s.attributes.target for s in steps if isinstance(s, Call) and not s.attributes.target.startswith("fusec.")}


def kernels(graphs: list[CompiledGraph]) -> list[KernelReport]:
    return [report for graph in graphs for exe in graph.executables for report in exe.program.reports]


def holds(report: KernelReport, op: str) -> bool:
    return any(o.op == op for o in report.fused)


@pytest.mark.parametrize("name", by_night(MODELS, "t5", "mixtral"))
def test_a_model_is_right_and_fused(name: str) -> None:
    model = MODELS[name]
    module, inputs = model.make()
    module.eval()
    with torch.no_grad(), gathering() as graphs:
        expected = module(**inputs)[0]
        found = torch.compile(module, backend=torch_compile.backend)(**inputs)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert graphs
    assert not any(graph.cuts or graph.eager_calls for graph in graphs)
    assert calls(graphs) <= model.library
    made = kernels(graphs)
    assert sum(report.kind == "attention" for report in made) == model.attentions
    op, count = model.activations
    assert sum(report.kind == "gemm" and holds(report, op) for report in made) == count
    text = "\n".join(graph.report() for graph in graphs)
    assert text.count("attention_") >= model.attentions


def test_a_loss_and_its_gradients() -> None:
    module, inputs = gpt2()
    inputs["labels"] = inputs["input_ids"]
    module.eval()
    weights = [p for p in module.parameters() if p.requires_grad]
    expected = torch.autograd.grad(module(**inputs).loss, weights)
    with gathering() as graphs:
        loss = torch.compile(module, backend=torch_compile.backend)(**inputs).loss
        found = torch.autograd.grad(loss, weights)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert {graph.kind for graph in graphs if graph.parts} == {"forward", "backward"}
    assert not any(graph.cuts or graph.eager_calls for graph in graphs)
