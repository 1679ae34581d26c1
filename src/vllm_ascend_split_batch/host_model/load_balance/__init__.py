"""DyntraLB: data-parallel ranks of a decode deployment pause and admit requests by a plan that all compute alike."""

from vllm_ascend_split_batch.host_model.load_balance.admission import BalancedScheduler
from vllm_ascend_split_batch.host_model.load_balance.planner import RankPlan, RankRequests, exchanged, plan
from vllm_ascend_split_batch.host_model.load_balance.settings import BalanceActivation, BalanceSettings

__all__ = [
    "BalanceActivation",
    "BalanceSettings",
    "BalancedScheduler",
    "RankPlan",
    "RankRequests",
    "exchanged",
    "plan",
]
