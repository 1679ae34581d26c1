"""``torch.npu.config``: process-wide options."""


class Config:
    """The options that the emulated device has a meaning for; any other name raises AttributeError."""

    __slots__ = ("allow_internal_format",)

    def __init__(self) -> None:
        # Whether operators may choose NZ layouts by themselves. The emulated device holds ND either way.
        self.allow_internal_format = True
