"""Request traces: what arrived when, how long its prompt was and how much it produced.

One documented format of JSON lines (docs/formats/trace.md), readers for the shapes in which servers, gateways and
public data sets publish the same facts, and a generator. Standard library only.
"""

from vllm_ascend_split_batch.planning.traces.generator import Workload, generate
from vllm_ascend_split_batch.planning.traces.problems import Problem, TraceError
from vllm_ascend_split_batch.planning.traces.reading import FORMATS, Trace, detect, read_trace
from vllm_ascend_split_batch.planning.traces.request import SCHEMA, TraceRequest
from vllm_ascend_split_batch.planning.traces.writing import write_trace

__all__ = [
    "FORMATS",
    "SCHEMA",
    "Problem",
    "Trace",
    "TraceError",
    "TraceRequest",
    "Workload",
    "detect",
    "generate",
    "read_trace",
    "write_trace",
]
