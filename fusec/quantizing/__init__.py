# SPDX-License-Identifier: Apache-2.0
"""Calibration: a model's layers in fewer bits, as plain PyTorch code that fusec fuses."""
