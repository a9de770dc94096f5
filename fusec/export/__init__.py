# SPDX-License-Identifier: Apache-2.0
"""Graphs for other programs' viewers: ONNX (Netron) and Model Explorer."""
