"""What fia-demask adds to one attention call of the host, per layer and step.

    python -m torch_npu_emulator -- python benchmarks/decode_mask_overhead.py [--out FILE.json]

The carrier's own wrapper, made for the installed host, lies over a function that does nothing; layer and metadata are
the host's classes. Prints the time of one call and what it is above the bare one, for calls that keep their mask and
for calls that lose it, by sequences in the batch. Bar: under 2 microseconds added where the mask stays.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import timeit
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_ascend_split_batch.carrier import Context, Patch, PatchSet, Seam, Settings
from vllm_ascend_split_batch.fia_demask_plugin import FIA_DEMASK

MODULE = "host_of_decode_mask_overhead"
BAR_US = 2.0
CALLS = 50_000
ROUNDS = 7
BATCHES = (1, 32, 256, 1024)


class Attention:
    """Stands for the host's attention: the carrier's wrapper lies over its method."""

    def forward(
        self, query: Any, key: Any, value: Any, attn_metadata: Any, output: Any, kv_cache: Any = None
    ) -> Any:
        """What is called."""
        return output


def metadata(attention: Any, mask: Any, sequences: int, **changes: Any) -> Any:
    """A decode step of the host, with changes."""
    facts = {
        "attn_mask": mask,
        "attn_state": attention.AscendAttentionState.DecodeOnly,
        "num_actual_tokens": sequences,
        "seq_lens_list": [100] * sequences,
        "actual_seq_lengths_q": list(range(1, sequences + 1)),
    }
    return attention.AscendMetadata(**(facts | changes))


def one_call_us(layer: Any, step: Any) -> float:
    """Microseconds of one call, the fastest of some rounds."""
    forward = Attention.forward
    return min(timeit.repeat(lambda: forward(layer, 1, 2, 3, step, 5, None), number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def measure() -> list[dict[str, Any]]:
    """One row a case: its name, whether it keeps its mask, microseconds a call and above the bare one."""
    import torch
    import vllm_ascend.ops  # noqa: F401 - before attention_v1, as the host itself imports it
    from vllm.forward_context import override_forward_context
    from vllm_ascend.attention import attention_mask, attention_v1

    from vllm_ascend_split_batch.attention_mask import binding

    module = types.ModuleType(MODULE)
    module.Attention = Attention  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    mask = attention_mask.AttentionMaskBuilder(torch.device("npu")).get_splitfuse_attn_mask()
    states = attention_v1.AscendAttentionState

    def layer(**changes: Any) -> Any:
        made = object.__new__(attention_v1.AscendAttentionBackendImpl)
        facts: dict[str, Any] = {"sliding_window": None, "sinks": None, "enable_c8_quant": False, "head_size": 128}
        facts |= {"attn_type": "decoder", "vllm_config": SimpleNamespace(speculative_config=None)}
        vars(made).update(facts | changes)
        return made

    steps = {batch: metadata(attention_v1, mask, batch) for batch in BATCHES}
    cases: list[tuple[str, bool, Any, Any]] = [
        ("prefill", True, layer(), metadata(attention_v1, mask, 32, attn_state=states.ChunkedPrefill)),
        ("sliding window", True, layer(sliding_window=64), steps[32]),
        ("speculative decoding", True, layer(vllm_config=SimpleNamespace(speculative_config=1)), steps[32]),
        ("a user's own mask", True, layer(), metadata(attention_v1, mask.clone(), 32)),
        *((f"decode, {batch} sequences", False, layer(), step) for batch, step in steps.items()),
    ]
    bare = one_call_us(layer(), steps[1])
    context = Context(FIA_DEMASK, Settings.read(FIA_DEMASK.gates, {"VLLM_HUST_FIA_DEMASK": "1"}))
    patch = PatchSet([Patch(Seam(f"{MODULE}:Attention.forward"), binding._Demask(context).around)])
    patch.install()
    rows: list[dict[str, Any]] = [{"case": "bare", "mask": "", "us": bare, "added_us": 0.0}]
    with override_forward_context(SimpleNamespace(capturing=False)):
        for name, kept, made, step in cases:
            engaged = FIA_DEMASK.guard.engaged
            us = one_call_us(made, step)
            if (FIA_DEMASK.guard.engaged == engaged) is not kept:
                raise SystemExit(f"decode_mask_overhead: {name}: the mask was {'left out' if kept else 'kept'}")
            rows.append({"case": name, "mask": "kept" if kept else "left out", "us": us, "added_us": us - bare})
    patch.uninstall()
    return rows


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    arguments = parser.parse_args()
    logging.getLogger("vllm.split_batch").setLevel(logging.CRITICAL)
    rows = measure()
    print(f"{'call':<32}{'mask':>10}{'us a call':>11}{'added':>8}")
    for row in rows:
        print(f"{row['case']:<32}{row['mask']:>10}{row['us']:>11.3f}{row['added_us']:>8.3f}")
    worst = max(row["added_us"] for row in rows if row["mask"] == "kept")
    met = worst < BAR_US
    print(f"where the mask stays, at most {worst:.3f} us are added, bar {BAR_US} us: {'met' if met else 'MISSED'}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"rows": rows, "bar_us": BAR_US, "python": sys.version}, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
