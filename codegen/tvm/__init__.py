# SPDX-License-Identifier: Apache-2.0
"""Kernels for CPUs, through TVM. What is compiled runs without any part of it."""

from fusec.packages import is_there
from fusec.target.quota import within_quota

if is_there("tvm_ffi"):
    with within_quota():  # tvm_ffi imports torch wherever that is installed, and torch its OpenMP
        import tvm_ffi  # noqa: F401
