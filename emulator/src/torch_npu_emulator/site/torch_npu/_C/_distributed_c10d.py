"""The options of the HCCL process group."""

from __future__ import annotations

import datetime
from typing import Any


class ProcessGroupHCCL:
    """Made by torch.distributed (as a gloo group, see `torch_npu._collectives`), never by its own constructor."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("make process groups by torch.distributed.new_group(backend='hccl')")

    class Options:
        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self.hccl_config: dict[str, Any] = {}
            self.op_timeout: datetime.timedelta | None = None
            self._timeout: datetime.timedelta | None = None
            self.global_ranks_in_group: list[int] = []
            self.group_id = ""
