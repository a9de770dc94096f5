"""The command that compiles every case for every card: a case of each kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from fusec.codegen.cuda.nvrtc import has_nvrtc

if not has_nvrtc():
    pytest.skip("no NVRTC", allow_module_level=True)

from tests.campaigns.cards import cases, compiled, main


def test_a_case_of_each_kind_is_there() -> None:
    names = [name for name, _ in cases("cuda:sm_90")]
    assert len(set(names)) == len(names)
    for kind in ("softmax", "mma square", "mma attention plain", "hopper half", "hopper attention plain"):
        assert kind in names


def test_what_compiles_and_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cards", "sm_86", "--only", "chain_f32_7"]) == 0
    assert capsys.readouterr().out.endswith("0 of 1 do not compile\n")
    kernels = dict(cases("cuda:sm_90"))["hopper attention plain"]
    assert not compiled("hopper attention plain", kernels, "cuda:sm_80")
    assert "FAILED cuda:sm_80 hopper attention plain" in capsys.readouterr().out
