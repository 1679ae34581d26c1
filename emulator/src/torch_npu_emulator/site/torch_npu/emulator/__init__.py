"""What the emulated torch_npu has and the real one has not: its switches, counters, operator log.

That this package exists tells that the NPU is emulated.
"""
