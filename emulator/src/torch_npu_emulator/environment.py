"""The environment in which a command meets the emulated NPU."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch_npu_emulator._version import __version__
from torch_npu_emulator.backend.build import ensure_backend

_PACKAGE = Path(__file__).parent
SITE = _PACKAGE / "site"
SITE_KERNELS = _PACKAGE / "site_kernels"

KERNELS_VARIABLE = "NPU_EMU_KERNELS"
_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_CANN_FOLDER = Path("/usr/local/Ascend")


class EmulatorRefused(RuntimeError):
    """The emulator must not run here; the message is one line that says why and what to do."""


def environment(base: Mapping[str, str] | None = None, *, kernels: bool = True) -> dict[str, str]:
    """Returns ``base`` (default: this process's environment) with what loads the emulated NPU.

    Every Python process started in it gets the emulated NPU when it imports torch. The compiled backend is built
    first where the cache has none (`BuildError` where that is impossible).

    ``kernels=False``, like ``NPU_EMU_KERNELS=none`` in ``base``, leaves the stand-in ``ascend_kernel`` out.

    Raises `EmulatorRefused` where a real torch-npu or CANN is present, where ``base`` keeps torch from loading
    device backends, or where one of the emulator's own variables holds what it does not accept.
    """
    result = dict(os.environ if base is None else base)
    refuse_real_npu(result)
    if result.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise EmulatorRefused(
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set, so torch would not load the emulated NPU: unset it"
        )
    refuse_settings(result)
    if not kernels:
        result[KERNELS_VARIABLE] = "none"
    folders = [str(SITE)]
    if _kernels_wanted(result):
        folders.append(str(SITE_KERNELS))
    already = [
        p for p in result.get("PYTHONPATH", "").split(os.pathsep) if p and p not in (str(SITE), str(SITE_KERNELS))
    ]
    result["PYTHONPATH"] = os.pathsep.join(folders + already)
    result["TORCH_NPU_EMULATOR"] = __version__
    result["NPU_EMU_BACKEND"] = str(ensure_backend())
    # The host's graph compiler returns an FX graph module, which torch 2.13's cache of compiled functions refuses
    # (torch 2.10, which the host pins, does not): a difference between the torch versions, not between devices.
    result["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"
    # The host keeps nothing of what TorchAir compiles, but vLLM records that it did: a second start with vLLM's compile
    # cache would find nothing to call. Without the cache every start compiles.
    result.setdefault("VLLM_DISABLE_COMPILE_CACHE", "1")
    return result


def variables(result: Mapping[str, str]) -> dict[str, str]:
    """The variables that `environment` sets or changes."""
    names = (
        "PYTHONPATH",
        "TORCH_NPU_EMULATOR",
        "NPU_EMU_BACKEND",
        "TORCHINDUCTOR_AUTOGRAD_CACHE",
        "VLLM_DISABLE_COMPILE_CACHE",
        KERNELS_VARIABLE,
    )
    return {name: result[name] for name in names if name in result}


def refuse_real_npu(base: Mapping[str, str], cann_folder: Path = _CANN_FOLDER) -> None:
    """Raises `EmulatorRefused` where the machine or the environment has the real thing."""
    try:
        version = importlib.metadata.version("torch-npu")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        raise EmulatorRefused(
            f"torch-npu {version} is installed here: the emulated NPU would hide it; use another environment"
        )
    for name in _CANN_VARIABLES:
        if base.get(name):
            raise EmulatorRefused(
                f"{name}={base[name]} points at a CANN toolkit: the emulated NPU is for machines without one; "
                f"unset {name} if it is a leftover"
            )
    if cann_folder.exists():
        raise EmulatorRefused(f"CANN is installed in {cann_folder}: the emulated NPU is for machines without one")


def refuse_settings(base: Mapping[str, str]) -> None:
    """Raises `EmulatorRefused` for what every process would refuse only when it imports torch, behind a traceback."""
    path = SITE / "torch_npu" / "emulator" / "setting_values.py"
    spec = importlib.util.spec_from_file_location("torch_npu_emulator._setting_values", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        values = module.read(base)
    except module.SettingError as error:
        raise EmulatorRefused(str(error)) from None
    for name, place in (("NPU_EMU_COUNTERS", values.counters_folder), ("NPU_EMU_OPLOG", values.oplog_path)):
        if not place:
            continue
        folder = Path(place) if name == "NPU_EMU_COUNTERS" or Path(place).is_dir() else Path(place).absolute().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # what permissions alone do not tell, of root for instance
        except OSError as error:
            raise EmulatorRefused(
                f"{name}={place}: {folder} cannot be written to ({error.strerror}); name a folder of yours"
            ) from None


def _kernels_wanted(base: Mapping[str, str]) -> bool:
    value = base.get(KERNELS_VARIABLE, "reference")
    if value not in ("reference", "triton", "none"):
        raise EmulatorRefused(f"{KERNELS_VARIABLE}={value!r}: accepted are 'reference', 'triton' and 'none'")
    return value != "none"
