"""Fixtures of this folder."""

from tests.mutants import mutant  # noqa: F401
