"""What to set for a request trace: capture sizes, split thresholds, waiting lanes; with what it changes."""

from vllm_ascend_split_batch.planning.advice.advise import Advice, Limits, advise
from vllm_ascend_split_batch.planning.advice.capture_sizes import best_capture_sizes
from vllm_ascend_split_batch.planning.advice.graphs import GraphChoice, WorstPadding
from vllm_ascend_split_batch.planning.advice.lanes import Choice, candidates, choose
from vllm_ascend_split_batch.planning.advice.split_threshold import SplitAdvice, split_advice

__all__ = [
    "Advice",
    "Choice",
    "GraphChoice",
    "Limits",
    "SplitAdvice",
    "WorstPadding",
    "advise",
    "best_capture_sizes",
    "candidates",
    "choose",
    "split_advice",
]
