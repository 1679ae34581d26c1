"""Front door of fi-sampling, the `vllm.general_plugins` entry point of that name: the sampling step by our own kernels.

A declaration only. With its gate closed nothing but the standard library is imported.
"""

from __future__ import annotations

from vllm_ascend_split_batch.carrier import Calls, Carrier, Flag, Integer, Seam

EXTENSION_ID = "org.vllm-hust.fi-sampling"

RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
SAMPLER = "vllm_ascend.sample.sampler"
SAMPLE = f"{RUNNER}._sample"
FORWARD = f"{SAMPLER}:AscendTopKTopPSampler.forward_native"

GATE = "VLLM_HUST_FI_SAMPLING"

FI_SAMPLING = Carrier(
    "fi-sampling",
    gates=(
        Flag(GATE, help="draw tokens by our own kernels where a route allows it"),
        Integer(f"{GATE}_SEED", -1, maximum=(1 << 63) - 1, help="base of the draws; negative: the engine's seed"),
        Integer(f"{GATE}_JOINT_MIN_BATCH", 256, minimum=1, maximum=1 << 20, help="rows from which both run joint"),
        Integer(f"{GATE}_JOINT_MIN_K", 32, minimum=1, maximum=1 << 31, help="least top-k of any row for the same"),
        Flag(f"{GATE}_K1_ARGMAX", True, help="take the argmax where every row has top-k 1"),
        Flag(f"{GATE}_SEEDED", help="draw requests with a seed of their own, too; not stock's tokens"),
        Flag(f"{GATE}_TRACE", help="log the first decisions"),
    ),
    seams=(
        Seam(
            SAMPLE,
            parameters=("logits", "spec_decode_metadata"),
            why="the sampling step of a batch: its top-k and top-p are read on the host's side, and steps are counted",
        ),
        Seam(
            FORWARD,
            parameters=("logits", "generators", "k", "p"),
            why="filtering and drawing: the place that is taken over",
        ),
        Seam(
            f"{SAMPLER}:AscendSampler.__init__",
            calls=Calls("AscendTopKTopPSampler", 1),
            why="the sampler draws through the class that is patched",
        ),
        Seam(
            f"{RUNNER}.__init__",
            calls=Calls("AscendSampler", 1),
            why="the runner samples through that sampler",
        ),
        Seam(
            "vllm_ascend.ascend_config:get_ascend_config",
            parameters=(),
            why="switches of the host under which its own sampling must run",
        ),
    ),
    binding="vllm_ascend_split_batch.sampling.binding",
    extension_id=EXTENSION_ID,
)

load = FI_SAMPLING.load
