"""Keys and values that come from another engine or from the CPU: the connector's answers and the loads."""

from vllm_ascend_split_batch.host_model.remote_kv.connector import Connector, RemoteTokens
from vllm_ascend_split_batch.host_model.remote_kv.loads import LoadState, RemoteLoads

__all__ = ["Connector", "LoadState", "RemoteLoads", "RemoteTokens"]
