# SPDX-License-Identifier: Apache-2.0
"""The passes: from a captured graph to a graph of kernels."""
