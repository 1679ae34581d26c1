"""Tiny random models whose rotary embedding is scaled or has three axes, and whose texts tell when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .engines import Batch

VOCABULARY = 512
HEAD = 64
POSITIONS = 4096

#: What the text parts have in common. Head size 64: 32 frequencies.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
    "initializer_range": 0.08,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 512}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True}


def build(name: str, folder: Path, dtype: str = "float32") -> Path:
    """Write model `name` ("llama3", "yarn" or "mrope") into `folder`, once; its own folder."""
    import torch
    import transformers

    target = folder / f"rope-{name}-{dtype}"
    if (target / "config.json").exists():
        return target
    torch.manual_seed(11)
    network: Any
    if name == "mrope":
        # The host replaces the attention of Qwen3 and its like by one that rotates in a kernel of its own; Qwen2.5-VL's
        # calls the rotary embedding. On text all three axes are equal, so that interleaving them changes nothing.
        network = transformers.Qwen2_5_VLForConditionalGeneration(
            transformers.Qwen2_5_VLConfig(
                text_config=COMMON | {"rope_parameters": MROPE},
                vision_config={
                    "depth": 1,
                    "hidden_size": 32,
                    "intermediate_size": 32,
                    "num_heads": 2,
                    "out_hidden_size": 256,
                    "fullatt_block_indexes": [0],
                },
                image_token_id=500,
                video_token_id=501,
                vision_start_token_id=502,
                vision_end_token_id=503,
                tie_word_embeddings=False,
            )
        )
    else:
        scaling = {"llama3": LLAMA3, "yarn": YARN}[name]
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON, rope_parameters=scaling))
    network.to(getattr(torch, dtype)).eval().save_pretrained(target)
    return target


def greedy(path: Path, batch: Batch, name: str) -> list[list[int]]:
    """transformers' greedy continuation of every prompt, one at a time, float32 on the CPU: the reference."""
    import torch
    import transformers

    kind = transformers.Qwen2_5_VLForConditionalGeneration if name == "mrope" else transformers.LlamaForCausalLM
    network: Any = kind.from_pretrained(path, dtype=torch.float32).eval()
    texts = []
    with torch.inference_mode():
        for prompt in batch.prompts:
            ids = torch.tensor([prompt])
            settings = {"max_new_tokens": batch.tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
            output = network.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            texts.append(output[0, len(prompt) :].tolist())
    return texts
