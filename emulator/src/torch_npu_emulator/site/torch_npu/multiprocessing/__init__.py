"""Sending npu tensors between processes."""
