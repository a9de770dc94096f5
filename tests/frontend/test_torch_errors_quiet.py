"""An error while tracing is the library's own, and nothing else is printed."""

import logging

import pytest
import torch

import fusec


def test_a_shape_error_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @fusec.jit
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    with caplog.at_level(logging.DEBUG), pytest.raises(RuntimeError, match="cannot be multiplied"):
        product(torch.ones(2, 3), torch.ones(4, 5))
    assert not [r for r in caplog.records if r.name.startswith("torch")]


def test_other_uses_of_fake_tensors_still_log() -> None:
    from fusec.frontend.torch_quiet import quiet_fake_tensors

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    record = logger.makeRecord(logger.name, logging.ERROR, "f", 1, "message", (), None)
    with quiet_fake_tensors():
        assert not logger.filter(record)
    assert logger.filter(record)


@pytest.mark.filterwarnings("ignore::fusec.RunsAsWritten")
def test_runs_on_symbolic_sizes_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A Fourier transform can't be followed on them."""
    jitted = fusec.jit(lambda x: torch.fft.rfft(x).abs())
    for rows in (3, 4):
        jitted(torch.ones(rows, 8))
    assert not [record for record in caplog.records if record.name == "torch._subclasses.fake_tensor"]
