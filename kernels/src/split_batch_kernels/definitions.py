"""Importing this defines the ops. A module of its own, and the package's last, so that others can wait for it."""

from __future__ import annotations

from .registration import define

#: Ops that were defined by somebody else when this was imported, and where.
FOREIGN_DEFINITIONS = define()
