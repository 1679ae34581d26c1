"""Fixtures of the kernel tests that property tests use too."""

from __future__ import annotations

from tests.kernels.triton_mutants import triton_mutant as triton_mutant
