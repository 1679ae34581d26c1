"""The host's own operators, library ``_C_ascend``, which its extension module registers on hardware."""

from __future__ import annotations

import torch

from torch_npu import _backend
from torch_npu.ops.norm import add_rms_norm, rms_norm

# Those the dense path calls or for which the host registers a shape function. The others are undefined, as in a host
# built without them.
SCHEMAS = (
    (
        "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6) "
        "-> (Tensor y, Tensor rstd, Tensor x)"
    ),
    "npu_gemma_rms_norm(Tensor x, Tensor gamma, float epsilon=1e-6) -> (Tensor y, Tensor rstd)",
    (
        "get_masked_input_and_mask(Tensor input, int org_vocab_start_index, int org_vocab_end_index, "
        "int num_org_vocab_padding, int added_vocab_start_index, int added_vocab_end_index) "
        "-> (Tensor masked_input, Tensor mask)"
    ),
    "bgmv_expand(Tensor! x, Tensor! weight, Tensor! indices, Tensor! y, int slice_offset, int slice_size) -> Tensor",
    (
        "sgmv_expand(Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! y, int slice_offset, "
        "int slice_size) -> Tensor"
    ),
    "device_print(str msg) -> ()",
    "device_print_tensor(Tensor tensor) -> ()",
)

_libraries: list[torch.library.Library] = []


def _meta_add_rms_norm_bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(x1), x1.new_empty([*x1.shape[:-1], 1], dtype=torch.float32), torch.empty_like(x1)


def npu_add_rms_norm_bias(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The norm of x1 + x2 plus ``beta``, its rstd, and x1 + x2."""
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return (y if beta is None else y + beta), rstd, x


def _meta_gemma_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty([*x.shape[:-1], 1], dtype=torch.float32)


def npu_gemma_rms_norm(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x by ``1 + gamma``, which is what Gemma's layers mean by their weight, and its rstd."""
    return rms_norm(x, 1.0 + gamma.float(), epsilon)


def define() -> None:
    """Defines the library; called when the host imports its extension module."""
    if _libraries:
        return
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    _libraries.append(library)
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("npu_add_rms_norm_bias", npu_add_rms_norm_bias, "PrivateUse2")
    library.impl("npu_add_rms_norm_bias", _meta_add_rms_norm_bias, "Meta")
    _backend.bind("_C_ascend", "npu_add_rms_norm_bias")
    library.impl("npu_gemma_rms_norm", npu_gemma_rms_norm, "PrivateUse2")
    library.impl("npu_gemma_rms_norm", _meta_gemma_rms_norm, "Meta")
    _backend.bind("_C_ascend", "npu_gemma_rms_norm")
