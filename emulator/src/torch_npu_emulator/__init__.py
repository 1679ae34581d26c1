"""An emulated Ascend NPU for torch: ``python -m torch_npu_emulator -- COMMAND``.

The emulator installs no top-level ``torch_npu``. It keeps one in its site folder and puts that folder on the
``PYTHONPATH`` of the command it starts; torch loads it there as it loads the real one, by its autoload entry point, in
every process that the command starts.
"""

from torch_npu_emulator._version import __version__
from torch_npu_emulator.environment import EmulatorRefused, environment

__all__ = ["EmulatorRefused", "__version__", "environment"]
