"""Kernels for CPUs, through TVM."""

from fusec.target.quota import within_quota

with within_quota():  # tvm_ffi imports torch wherever that is installed, and torch its OpenMP
    import tvm_ffi  # noqa: F401
