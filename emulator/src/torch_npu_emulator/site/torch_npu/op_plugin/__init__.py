"""Operator plugins of the published package."""
