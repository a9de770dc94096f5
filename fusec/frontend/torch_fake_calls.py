# SPDX-License-Identifier: Apache-2.0
"""Calls on the fake tensors of a capture: what they give, and what they can't tell without the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from fusec.errors import BranchError, DataDependentError, UnsupportedOpError
from fusec.frontend.outcomes import followed_outcomes
from fusec.frontend.torch_fake import grouped_matmul
from fusec.frontend.torch_outcomes import is_branch
from fusec.frontend.torch_references import References
from fusec.frontend.torch_rehearsal import check_dtypes, check_layout
from fusec.frontend.torch_row_sets import ChosenRowsError, RowSets
from fusec.frontend.torch_tensors import TracedTensors
from fusec.ir.nodes import Op, Value

Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]

_ADVICE = (
    "use torch.where or masks instead of `if`, keep the number as a tensor, "
    "or compute it outside and pass it in as a plain Python number"
)


class FakeCalls(TracedTensors):
    """The tensors of a capture, and calls on what stands for them.

    ``row_sets``: the rows that data chooses, where they are followed. ``branches``: the values that branches have
    asked for, with what they found.
    """

    def __init__(self, name: str, references: References, *, for_code: bool, for_gpu: bool = False) -> None:
        super().__init__(name, references, for_code=for_code, for_gpu=for_gpu)
        self.row_sets: RowSets | None = None
        self.branches: list[tuple[Value, bool]] = []

    def _check_dtypes(
        self, func: OpOverload, args: Arguments, kwargs: Keywords, outs: Sequence[torch.Tensor] = ()
    ) -> None:
        """:func:`check_dtypes`, which asks the library for CPUs; :func:`check_layout` as well."""
        if not self.emitter.for_gpu:
            check_layout(func, args)
            check_dtypes(func, args, kwargs, outs)

    def _run_fake(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> Any:
        """The call on fake tensors. The user's own mistakes come out as eager's errors."""
        try:
            with self._fake_mode:
                known = grouped_matmul(*args, **kwargs) if func is torch.ops.aten._grouped_mm.default else None
                return known if known is not None else func(*args, **kwargs)
        except DataDependentOutputException:
            if self.row_sets is not None and func is torch.ops.aten._local_scalar_dense.default:
                number = self.row_sets.conditions.known(self.value(args[0]))
                if number is not None:
                    return number.item()
            if is_branch(func, args):
                outcome = self._outcome(args[0])
                if outcome is not None:
                    return outcome
            raise (BranchError if is_branch(func, args) else DataDependentError)(
                "the value of a tensor is needed while tracing (an `if` or `while` on a tensor, bool(), int(), "
                f"float(), .item() or .tolist()); {_ADVICE}",
                self.emitter.location,
            ) from None
        except DynamicOutputShapeException:
            raise ChosenRowsError(
                f"{self.emitter.call}: the result's shape depends on the values of a tensor; {_ADVICE}",
                self.emitter.location,
            ) from None
        except (UnsupportedOperatorException, UnsupportedFakeTensorException, NotImplementedError) as error:
            raise UnsupportedOpError(
                f"{self.emitter.call}: its result can't be known without running it ({error})", self.emitter.location
            ) from None
        except RuntimeError as error:
            if "NestedTensorImpl" in str(error):  # PyTorch's own error where it makes a fake of one
                raise self._not_strided("nested") from None
            raise

    def made_by(self, value: Value) -> Op | None:
        """The op that makes a value."""
        return self.builder.producer(value)

    def _outcome(self, asked: torch.Tensor) -> bool | None:
        """What a branch is to find in a tensor; None where nobody has said."""
        outcomes = followed_outcomes()
        outcome = outcomes.take() if outcomes is not None else None
        if outcome is not None:
            self.branches.append((self.handle(asked).read(self.emitter), outcome))
        return outcome

    def _check_strided(self, outs: Sequence[torch.Tensor]) -> None:
        """Refuses results that are not memory with strides. Nothing else can be asked of them."""
        for out in outs:
            if out.is_nested or out.layout is not torch.strided:
                raise self._not_strided("nested" if out.is_nested else f"{out.layout}".removeprefix("torch."))

    def _not_strided(self, kind: str) -> UnsupportedOpError:
        said = f"{self.emitter.call} makes a tensor that is more than memory and strides: {kind}"
        return UnsupportedOpError(said, self.emitter.location)
