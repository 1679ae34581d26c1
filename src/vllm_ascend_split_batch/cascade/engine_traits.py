"""What an engine's configuration says about one attention group: the admission's static facts, read from the runner."""

from __future__ import annotations

from typing import Any

from .admission import EngineTraits
from .device_limits import ModelShape, beyond_limits, scale_is_builtin

#: KV-cache settings that keep keys and values in the model's own 16 or 32 bit type.
PLAIN_CACHE_TYPES = frozenset({"auto", "bfloat16", "float16", "half", "float32", "float"})


def read_traits(
    runner: Any,
    group: Any,
    *,
    table_block_size: int,
    builder_type: type,
    impl_type: type,
    fp32_prefix: bool,
    limits_apply: bool,
    wheel: bool = True,
) -> EngineTraits:
    """The traits of one attention group of `runner`.

    Args:
        runner: the host's `NPUModelRunner`. group: one of its attention groups.
        table_block_size: tokens per entry of the host's block table.
        builder_type, impl_type: the host's plain metadata builder and attention implementation; subclasses (context
            parallelism, quantised KV) attend differently and are not served.
        fp32_prefix: the prefix stage runs `fa_fp32_stage1`.
        limits_apply: the limits of the device builds count. wheel: the kernel wheel merges.
    """
    config = runner.vllm_config
    parallel, model = config.parallel_config, config.model_config
    spec = group.kv_cache_spec
    layers = [config.compilation_config.static_forward_context[name].impl for name in group.layer_names]
    stock = type(group.get_metadata_builder()) is builder_type and all(type(layer) is impl_type for layer in layers)
    return EngineTraits(
        speculative=config.speculative_config is not None,
        microbatching=bool(parallel.use_ubatching),
        context_parallel=parallel.decode_context_parallel_size > 1
        or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        mla=bool(model.use_mla),
        alibi=bool(runner.use_alibi) or any(getattr(layer, "alibi_slopes", None) is not None for layer in layers),
        stock_backend=stock,
        sinks=any(getattr(layer, "sinks", None) is not None for layer in layers),
        quantised_kv=str(config.cache_config.cache_dtype) not in PLAIN_CACHE_TYPES
        or any(getattr(layer, "enable_c8_quant", False) for layer in layers),
        sliding_window=getattr(spec, "sliding_window", None) is not None
        or any(getattr(layer, "sliding_window", None) is not None for layer in layers),
        local_attention=getattr(spec, "attention_chunk_size", None) is not None,
        split_blocks=stock and table_block_size != spec.block_size,
        beyond_device_limits=_beyond(spec, layers, fp32_prefix, limits_apply, wheel) if stock else None,
    )


def _beyond(spec: Any, layers: list[Any], fp32_prefix: bool, limits_apply: bool, wheel: bool) -> str | None:
    for layer in layers:
        shape = ModelShape(
            dtype=str(spec.dtype).removeprefix("torch."),
            head_size=layer.head_size,
            block_size=spec.block_size,
            query_heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            scale=layer.scale,
        )
        # Not a limit of a build but what the op computes: it holds for every implementation.
        if fp32_prefix and not scale_is_builtin(shape):
            return f"fa_fp32_stage1 scales by 1/sqrt({shape.head_size}), the model by {shape.scale:g}"
        if limits_apply and (beyond := beyond_limits(shape, fp32_prefix=fp32_prefix, wheel=wheel)):
            return beyond
    return None
