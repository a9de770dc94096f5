# SPDX-License-Identifier: Apache-2.0
"""A compiled function as one HTML page that needs nothing else."""
