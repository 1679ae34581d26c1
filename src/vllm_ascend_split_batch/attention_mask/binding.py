"""Where the decode mask carrier meets the host: one attribute, a layer's attention.

Around a call whose mask masks nothing, the step's metadata says "not causal, no mask". The host then runs its own
maskless form: mask and mode change together, in the eager call and at capture, and what is captured is what every
update of the graph repeats. Nothing of `torch_npu` is replaced, so it does not matter how the operator is spelt,
whether its arguments go by position, or who else rebinds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.cascade.step_plan import ATTRIBUTE as PLAN
from vllm_ascend_split_batch.cascade.step_plan import RECORDING
from vllm_ascend_split_batch.fia_demask_plugin import DEMASK, FORWARD, TRACE

from .host_form import missing_form, parse
from .predicate import OneToN, Reason

#: Side of the host's causal template, int8, 1 above the diagonal.
TEMPLATE_SIDE = 2048


def patches(context: Context) -> list[Patch]:
    """The carrier's one patch.

    Raises:
        Refused: the host has no maskless form, the device family is another one, or batch-invariant results are wanted.
    """
    return [context.patch(FORWARD, _Demask(context).around)]


class _Demask:
    def __init__(self, context: Context) -> None:
        import torch
        import vllm.envs
        from vllm.forward_context import get_forward_context
        from vllm_ascend.attention import attention_mask, attention_v1
        from vllm_ascend.device import device_op, utils

        impl = attention_v1.AscendAttentionBackendImpl
        lacking = missing_form(parse(impl.forward_fused_infer_attention), parse(impl.full_graph_fia))
        if lacking:
            raise Refused(f"this host has no maskless form: {lacking}")
        if attention_v1.DeviceOperator is not device_op.BaseDeviceAdaptor:
            raise Refused("this device is not of the A2/A3 family, where leaving the mask out is known to help")
        if getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False):
            raise Refused("VLLM_BATCH_INVARIANT asks for one kernel whatever the batch; the mask stays")

        self._guard = context.guard
        self._log = context.log
        self._site = context.guard.site("layer attention")
        self._drops: bool = context.settings[DEMASK]
        self._trace: bool = context.settings[TRACE]
        self._traced: set[str] = set()
        self._announced = False

        self._impl_type: type = impl
        self._decode = attention_v1.AscendAttentionState.DecodeOnly
        self._extra_context = attention_v1._EXTRA_CTX
        self._forward_context = get_forward_context
        self._mask_builder = attention_mask.AttentionMaskBuilder
        self._int8 = torch.int8
        self._large_head: int = utils.FIA_TND_LARGE_HEAD_FALLBACK_HEAD_SIZE
        self._ends = OneToN()
        self._template: Any = None
        self._tried = False

    def around(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `forward_fused_infer_attention`.

        The host's function is the body here, so a :class:`Site` cannot run it; the counting is the same.
        """
        guard, site = self._guard, self._site

        def forward(layer: Any, query: Any, key: Any, value: Any, attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            guard.calls += 1
            if guard.latched:
                guard.decline("latched")
                return native(layer, query, key, value, attn_metadata, *args, **kwargs)
            try:
                reason = self._reason(layer, attn_metadata)
                capturing = reason is None and bool(self._extra_context.capturing)
                if capturing:
                    reason = self._capture_reason()
                if self._trace:
                    self._say(reason, attn_metadata, capturing)
            except Exception as error:
                site.failed(error)
                return native(layer, query, key, value, attn_metadata, *args, **kwargs)
            if reason is not None:
                guard.decline(reason.value)
                return native(layer, query, key, value, attn_metadata, *args, **kwargs)
            if not self._drops:
                guard.count("would_apply")
                return native(layer, query, key, value, attn_metadata, *args, **kwargs)

            mask = attn_metadata.attn_mask
            failure: Exception
            attn_metadata.attn_mask, attn_metadata.causal = None, False
            try:
                result = native(layer, query, key, value, attn_metadata, *args, **kwargs)
            except Exception as error:
                if capturing:
                    # Part of the call may be in the graph already; it cannot be captured twice.
                    raise
                failure = error
            else:
                self._applied(capturing)
                return result
            finally:
                attn_metadata.attn_mask, attn_metadata.causal = mask, True
            site.failed(failure)
            return native(layer, query, key, value, attn_metadata, *args, **kwargs)

        return forward

    def _reason(self, layer: Any, metadata: Any) -> Reason | None:
        """Why this call keeps its mask, or None. Reads host-side state only."""
        if metadata.attn_state is not self._decode:
            return Reason.NOT_DECODE
        mask = metadata.attn_mask
        if mask is None or not metadata.causal:
            return Reason.NO_MASK
        if getattr(metadata, PLAN, None) is not None or getattr(metadata, RECORDING, None) is not None:
            # Cascade's calls: the same in whatever order the two were installed.
            return Reason.TWO_STAGE
        kind: type = type(layer)
        if kind is not self._impl_type:
            return Reason.ATTENTION_BACKEND
        if layer.sliding_window is not None:
            return Reason.SLIDING_WINDOW
        if layer.sinks is not None:
            return Reason.SINKS
        if layer.enable_c8_quant:
            return Reason.QUANTISED_KV
        if getattr(layer, "enable_hamming_sparse", False):
            return Reason.SPARSE_KV
        if layer.head_size == self._large_head:
            return Reason.LARGE_HEAD
        if layer.attn_type != "decoder":
            return Reason.ATTENTION_TYPE
        if layer.vllm_config.speculative_config is not None:
            return Reason.SPECULATIVE_DECODING
        if mask is not self._template and not self._is_template(mask):
            return Reason.OTHER_MASK
        ends = metadata.actual_seq_lengths_q
        if type(ends) is not list:
            # A device tensor could only be read by waiting for the device.
            return Reason.LENGTHS_NOT_ON_HOST
        return None if self._ends.matches(ends) else Reason.QUERY_LENGTHS

    def _is_template(self, mask: Any) -> bool:
        """Whether `mask` is the very tensor the host's builder made: the host has one builder per process."""
        template = self._mask_builder(mask.device).chunked_prefill_attn_mask
        if mask is not template or mask.dtype != self._int8 or tuple(mask.shape) != (TEMPLATE_SIDE, TEMPLATE_SIDE):
            return False
        self._template = mask
        return True

    def _capture_reason(self) -> Reason | None:
        """A captured call is replayed with other lengths: all batches the graph serves must be one query a sequence."""
        descriptor = self._forward_context().batch_descriptor
        if descriptor is None or not descriptor.uniform:
            return Reason.GRAPH_OF_MIXED_BATCHES
        if self._drops and not self._tried:
            # A failure inside a capture cannot be undone, so the call must have worked outside of one.
            return Reason.NOT_TRIED_BEFORE_CAPTURE
        return None

    def _applied(self, capturing: bool) -> None:
        self._site.in_a_row = 0
        self._guard.engaged += 1
        self._tried = True
        if capturing:
            self._guard.count("captured_calls")
        if not self._announced:
            self._announced = True
            self._log.info("fia-demask: first decode attention without the causal mask; results equal stock's")

    def _say(self, reason: Reason | None, metadata: Any, capturing: bool) -> None:
        outcome = "mask masks nothing" if reason is None else f"mask kept: {reason.value}"
        if capturing:
            outcome += " (captured)"
        if outcome not in self._traced:
            self._traced.add(outcome)
            self._log.info("[demask-trace] %s; first seen with %d sequences", outcome, len(metadata.seq_lens_list))
