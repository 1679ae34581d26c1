"""Prefill attention that writes straight into its destination.

The host calls the functional form of the fused operator, copies the result into `output`, and copies `output` onto
itself once more. The `out=` form of the same operator writes into the destination: two copies a layer fewer.
"""

from __future__ import annotations

from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, Refused
from vllm_ascend_split_batch.zerocost_plugin import FORWARD

from .host_call import contiguous_always, difference, parse
from .written import Written


def patches(context: Context) -> list[Patch]:
    """The feature's one patch.

    Raises:
        Refused: the host's prefill attention is not the call that is repeated here, the device family is another one,
            or batch-invariant results are wanted.
    """
    prefill = _PrefillOut(context)
    return [context.patch(FORWARD, context.guard.site("prefill attention").around(prefill.attend))]


class _PrefillOut:
    def __init__(self, context: Context) -> None:
        import torch
        import torch_npu
        import vllm.envs
        from vllm_ascend.attention import attention_v1
        from vllm_ascend.device import device_op, utils

        impl, adaptor = attention_v1.AscendAttentionBackendImpl, device_op.BaseDeviceAdaptor
        adaptor_tree = parse(adaptor.npu_fused_infer_attention_score)
        different = difference(parse(impl.forward_fused_infer_attention), parse(impl.forward), adaptor_tree)
        if different:
            raise Refused(f"this host's prefill attention is another one: {different}")
        if attention_v1.DeviceOperator is not adaptor:
            raise Refused("this device is not of the A2/A3 family, whose call is repeated here")
        if getattr(vllm.envs, "VLLM_BATCH_INVARIANT", False):
            raise Refused("VLLM_BATCH_INVARIANT replaces the operator by one that cannot write into a destination")

        self._guard = context.guard
        self._empty = torch.empty
        self._torch_functions_enabled = torch._C._is_torch_function_enabled
        self._torch_npu = torch_npu
        self._impl_type: type = impl
        self._states = attention_v1.AscendAttentionState
        self._extra_context = attention_v1._EXTRA_CTX
        self._large_head: int = utils.FIA_TND_LARGE_HEAD_FALLBACK_HEAD_SIZE
        self._contiguous_always = contiguous_always(adaptor_tree)

    def attend(
        self, layer: Any, query: Any, key: Any, value: Any, attn_metadata: Any, output: Any, kv_cache: Any = None
    ) -> Any:
        """A layer's prefill attention, written into `output` [T, H, D]; NATIVE for everything else."""
        reason = self._reason(layer, query, attn_metadata, output)
        if reason is not None:
            return self._guard.decline(reason)
        key, value, block_size, block_table, kv_lengths = layer._get_fia_params(key, value, attn_metadata, kv_cache)
        query_ends = attn_metadata.actual_seq_lengths_q
        rows = query_ends[-1]
        if attn_metadata.attn_state is self._states.PrefillNoCache:
            key, value = key[:rows], value[:rows]
        if self._contiguous_always or block_table is None:
            key, value = key.contiguous(), value.contiguous()
        destination = output[:rows]
        result, _ = self._torch_npu.npu_fused_infer_attention_score.out(
            query=query[:rows],
            key=key,
            value=value,
            atten_mask=attn_metadata.attn_mask,
            block_table=block_table,
            input_layout="TND",
            block_size=block_size,
            actual_seq_lengths=query_ends,
            actual_seq_lengths_kv=kv_lengths,
            num_key_value_heads=layer.num_kv_heads,
            num_heads=layer.num_heads,
            scale=layer.scale,
            sparse_mode=3,
            # The operator returns its log-sum-exp only when asked; one element stands in, as in the host's captures.
            out=[destination, self._empty(1, dtype=query.dtype, device=query.device)],
        )
        if result.data_ptr() != destination.data_ptr():
            self._guard.count("written_back")
            destination.copy_(result.view(destination.shape))
        self._guard.count("tokens", rows)
        if not self._torch_functions_enabled():
            # Compiled code calls attention with torch's protocol for foreign types switched off: nothing would ask
            # the result where it lies. The tensor itself is then copied onto itself, as the host does.
            self._guard.count("self_copies_kept")
            return output
        return Written(output, self._skipped)

    def _reason(self, layer: Any, query: Any, metadata: Any, output: Any) -> str | None:
        """Why this call is the host's, or None."""
        if metadata.attn_state is self._states.DecodeOnly:
            return "decode"
        kind: type = type(layer)
        if kind is not self._impl_type:
            return "attention_backend"
        if metadata.attn_state is self._states.SpecDecoding:
            return "speculative_decoding"
        if not metadata.causal or layer.attn_type != "decoder":
            return "not_causal"
        if layer.sinks is not None:
            return "attention_sinks"
        if layer.sliding_window is not None:
            return "sliding_window"
        if layer.enable_c8_quant:
            return "quantised_kv"
        if getattr(layer, "enable_hamming_sparse", False):
            return "sparse_kv"
        if layer.head_size == self._large_head:
            return "large_head"
        if (
            output.dim() != 3
            or output.shape[1:] != query.shape[1:]
            or output.dtype != query.dtype
            or not output.is_contiguous()
        ):
            return "output_layout"
        if self._extra_context.capturing:
            return "capturing"
        return None

    def _skipped(self) -> None:
        self._guard.count("self_copies_skipped")
