"""Tiny random models of real architectures, made in seconds, whose greedy texts do not fall into loops.

A default-initialised model repeats one token after a few steps, and a test on it would pass with half the attention
missing. Larger weights and untied embeddings keep the argmax moving; `distinct_share` is what the tests check.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class TinyModel:
    """One random model: architecture, attention shape, seed."""

    name: str
    architecture: str  # "qwen2", "qwen3", "llama" or "gemma" (GeGLU with the exact error function)
    heads: int
    kv_heads: int
    head_size: int
    layers: int = 3
    vocabulary: int = 512
    intermediate: int = 512
    seed: int = 0


#: One model per architecture; head sizes 64 and 128; groups of 1, 2 and 4 query heads per KV head.
QWEN2 = TinyModel("qwen2-d64", "qwen2", heads=4, kv_heads=2, head_size=64, seed=1)
QWEN3 = TinyModel("qwen3-d128", "qwen3", heads=4, kv_heads=1, head_size=128, seed=2)
LLAMA = TinyModel("llama-d64", "llama", heads=4, kv_heads=4, head_size=64, seed=3)
LLAMA_D128 = TinyModel("llama-d128", "llama", heads=4, kv_heads=2, head_size=128, seed=4)
GEMMA = TinyModel("gemma-d64", "gemma", heads=4, kv_heads=1, head_size=64, seed=7)
ALL = (QWEN2, QWEN3, LLAMA)

MAX_POSITIONS = 4096


def build(model: TinyModel, folder: Path, dtype: str = "float32") -> Path:
    """Write `model` into `folder` (config and safetensors; no tokenizer: tests speak in token ids)."""
    import torch
    import transformers

    target = folder / f"{model.name}-{dtype}"
    if (target / "complete.json").exists():
        return target
    common = {
        "vocab_size": model.vocabulary,
        "hidden_size": model.heads * model.head_size if model.architecture != "qwen3" else 256,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "initializer_range": 0.08,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if model.architecture == "qwen2":
        config, kind = transformers.Qwen2Config(**common), transformers.Qwen2ForCausalLM
    elif model.architecture == "qwen3":
        config, kind = transformers.Qwen3Config(head_dim=model.head_size, **common), transformers.Qwen3ForCausalLM
    elif model.architecture == "gemma":
        # Both libraries take the embedding's transpose for the output layer, whatever the configuration says.
        act = {"hidden_activation": "gelu", "tie_word_embeddings": True}
        config = transformers.GemmaConfig(head_dim=model.head_size, **(common | act))
        kind = transformers.GemmaForCausalLM
    else:
        config, kind = transformers.LlamaConfig(**common), transformers.LlamaForCausalLM
    torch.manual_seed(model.seed)
    network = kind(config)
    if model.architecture == "gemma":
        with torch.no_grad():  # or else the embedding, which is the output layer too, repeats the last token for ever
            for layer in network.model.layers:
                layer.mlp.down_proj.weight *= 20
                layer.self_attn.o_proj.weight *= 20
    network = network.to(getattr(torch, dtype)).eval()
    network.save_pretrained(target)
    (target / "complete.json").write_text(json.dumps(asdict(model)))
    return target


def greedy(path: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """transformers' own greedy continuation, one prompt at a time, float32 on the CPU: the reference."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if getattr(network.config, "hidden_activation", None) == "gelu":
        for layer in network.model.layers:  # transformers takes the tanh form for Gemma whatever is configured
            layer.mlp.act_fn = torch.nn.GELU()
    results = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            results.append(output[0, len(prompt) :].tolist())
    return results


def distinct_share(tokens: list[list[int]]) -> float:
    """Distinct tokens per generated token, averaged over texts: 1 where nothing repeats, near 0 in a loop."""
    return sum(len(set(text)) / len(text) for text in tokens) / len(tokens)
