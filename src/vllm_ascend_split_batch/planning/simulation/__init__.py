"""A request trace through the host's admission model on a virtual clock: who waits how long, and what steps run."""

from vllm_ascend_split_batch.planning.simulation.outcome import Outcome
from vllm_ascend_split_batch.planning.simulation.setup import Setup
from vllm_ascend_split_batch.planning.simulation.simulator import Simulation
from vllm_ascend_split_batch.planning.simulation.step_graphs import StepGraphs, StepRows
from vllm_ascend_split_batch.planning.simulation.step_time import StepTime
from vllm_ascend_split_batch.planning.simulation.step_totals import StepTotals

__all__ = ["Outcome", "Setup", "Simulation", "StepGraphs", "StepRows", "StepTime", "StepTotals"]
