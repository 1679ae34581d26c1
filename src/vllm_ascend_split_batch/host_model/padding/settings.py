"""The engine settings on which padding depends."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_ascend_split_batch.host_model.padding.modes import GraphMode
from vllm_ascend_split_batch.host_model.padding.releases import HostRelease


@dataclass(frozen=True)
class HostSettings:
    """One engine's settings, as resolved by the host.

    Attributes:
        release: the host.
        graph_mode: `cudagraph_mode`, as the attention backend allows it.
        max_num_seqs: most requests of a step.
        max_num_batched_tokens: most tokens of a step.
        num_speculative_tokens: draft tokens per request, 0 without speculative decoding.
        enforce_eager: no graphs.
        capture_sizes: the user's `cudagraph_capture_sizes`, None where not given.
        max_capture_size: the user's `max_cudagraph_capture_size`, None where not given.
        interactivity: `performance_mode` is "interactivity".
        few_graphs: the device has room for few graphs (Ascend 950 until the release that lifts it).
        tensor_parallel_size: ranks that share a layer.
        data_parallel_size: ranks that run batches of their own.
        sequence_parallel: the host's `enable_sp()`: FlashComm1 before 0.27 (which shared-expert data parallelism turns
            on in 0.23 and 0.25.1), sequence-parallel MoE from 0.27 on.
        sequence_parallel_pass: vLLM's compiler pass for sequence parallelism. It cuts capture sizes to multiples of the
            tensor-parallel size; it rounds tokens before 0.27 only.
        dsa_context_parallel: context parallelism of sparse attention; read from 0.27 on only.
        shared_expert_data_parallel: read from 0.27 on only.
        decode_context_parallel_size: ranks that share a request's keys and values.
        finegrained_tensor_parallel: output projection or embedding (from 0.30 on also language-model head or MLP) have
            a tensor-parallel size of their own.
        is_mla: multi-head latent attention.
        is_hybrid: Mamba and attention layers.
        is_encoder_decoder: an encoder-decoder model.
        recompute_decode_instance: a decode instance of a disaggregated deployment with the recompute scheduler.
        max_loras: most active LoRA adapters, None without LoRA.
        graphs_without_lora: capture graphs without LoRA beside those with it (`cudagraph_specialize_lora`).
        graphs_per_lora_count: capture graphs for several numbers of adapters (`specialize_active_lora`).
    """

    release: HostRelease
    graph_mode: GraphMode
    max_num_seqs: int
    max_num_batched_tokens: int = 8192
    num_speculative_tokens: int = 0
    enforce_eager: bool = False
    capture_sizes: tuple[int, ...] | None = None
    max_capture_size: int | None = None
    interactivity: bool = False
    few_graphs: bool = False
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    sequence_parallel: bool = False
    sequence_parallel_pass: bool = False
    dsa_context_parallel: bool = False
    shared_expert_data_parallel: bool = False
    decode_context_parallel_size: int = 1
    finegrained_tensor_parallel: bool = False
    is_mla: bool = False
    is_hybrid: bool = False
    is_encoder_decoder: bool = False
    recompute_decode_instance: bool = False
    max_loras: int | None = None
    graphs_without_lora: bool = True
    graphs_per_lora_count: bool = False

    @property
    def uniform_query_length(self) -> int:
        """Tokens of each request in a uniform decode batch."""
        return 1 + self.num_speculative_tokens

    @property
    def mode_in_force(self) -> GraphMode:
        """The graph mode, which the host resets where graphs are off altogether."""
        return GraphMode.NONE if self.enforce_eager else self.graph_mode

    @property
    def rounds_tokens(self) -> bool:
        """Whether scheduled tokens are rounded up to a multiple of the tensor-parallel size before dispatch.

        Before 0.27 a dense model runs short steps without sequence parallelism; the rounding does not look at that.
        """
        if self.release.rules.shards_tokens_by_pass:
            return self.sequence_parallel or self.sequence_parallel_pass
        return self.sequence_parallel or self.dsa_context_parallel

    @property
    def aligns_capture_sizes(self) -> bool:
        """Whether capture sizes are cut to multiples of the tensor-parallel size."""
        if not self.release.rules.aligns_for_any_sharding:
            return self.sequence_parallel
        return self.sequence_parallel or self.shared_expert_data_parallel or self.dsa_context_parallel
