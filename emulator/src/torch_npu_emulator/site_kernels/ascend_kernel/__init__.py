"""Stand-in for the kernel wheel: registers the operators of split_batch_kernels for the emulated NPU.

``NPU_EMU_KERNELS=none`` leaves it out.
"""

import os

if os.environ.get("NPU_EMU_KERNELS", "reference") == "none":
    raise ModuleNotFoundError("No module named 'ascend_kernel' (left out by NPU_EMU_KERNELS=none)", name="ascend_kernel")

import split_batch_kernels  # noqa: E402

__emulated__ = True
#: Whether the registered operators refuse what the device build would (NPU_EMU_DEVICE_LIMITS=1); users of the wheel ask.
ENFORCES_DEVICE_LIMITS = os.environ.get("NPU_EMU_DEVICE_LIMITS") == "1"

split_batch_kernels.register("PrivateUse1")
