"""Graph capture. Not modelled yet: whatever starts or serves a capture raises, and names the way out."""

from __future__ import annotations

from typing import NoReturn


class GraphsNotModelled(NotImplementedError):
    """A captured graph was asked for; the emulated NPU runs eagerly only."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: the emulated NPU runs eagerly only, graphs are not modelled yet (--enforce-eager)")


class NPUGraph:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise GraphsNotModelled("torch.npu.NPUGraph")


class graph:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise GraphsNotModelled("torch.npu.graph")


class ExternalEvent:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise GraphsNotModelled("torch.npu.ExternalEvent")


def is_current_stream_capturing() -> bool:
    return False


def graph_pool_handle() -> NoReturn:
    raise GraphsNotModelled("torch.npu.graph_pool_handle")


def graph_task_group_begin(*args: object) -> NoReturn:
    raise GraphsNotModelled("torch.npu.graph_task_group_begin")


def graph_task_group_end(*args: object) -> NoReturn:
    raise GraphsNotModelled("torch.npu.graph_task_group_end")


def graph_task_update_begin(*args: object) -> NoReturn:
    raise GraphsNotModelled("torch.npu.graph_task_update_begin")


def graph_task_update_end(*args: object) -> NoReturn:
    raise GraphsNotModelled("torch.npu.graph_task_update_end")
