"""Registration of the ATB operators, which the emulated package has done when it was imported."""


def _register_atb_extensions() -> None:
    """The ATB operators (``_npu_*``) are in the same schema file as all others."""
