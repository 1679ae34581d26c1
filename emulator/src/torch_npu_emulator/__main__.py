"""``python -m torch_npu_emulator``: run a command on the emulated NPU, or print or prepare what it needs."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence

from torch_npu_emulator._version import __version__
from torch_npu_emulator.backend.build import BuildError, ensure_backend
from torch_npu_emulator.environment import EmulatorRefused, environment, variables
from torch_npu_emulator.launch import CommandNotFound, launch

# The shell's own numbers for a command that does not exist, and for a wrong call.
NOT_FOUND, WRONG_USE, REFUSED = 127, 2, 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_npu_emulator",
        usage="python -m torch_npu_emulator [--print-env [--format shell|json] | --build] [-- COMMAND ARGS...]",
        description="Runs COMMAND with an emulated Ascend NPU: torch.device('npu') in every Python process it starts.",
    )
    parser.add_argument("--print-env", action="store_true", help="print the variables that COMMAND would get")
    parser.add_argument("--format", choices=("shell", "json"), default="shell", help="how --print-env prints them")
    parser.add_argument("--build", action="store_true", help="only build the compiled backend (cached)")
    parser.add_argument("--no-kernels", action="store_true", help="leave the stand-in ascend_kernel out")
    parser.add_argument("--version", action="version", version=f"torch-npu-emulator {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, command = arguments[:split], arguments[split + 1 :]
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.build:
            print(ensure_backend())
            return 0
        if not options.print_env and not command:
            parser.print_usage(sys.stderr)
            return _complain(
                "no command given: put it after '--', as in: -- vllm serve MODEL --enforce-eager", WRONG_USE
            )
        env = environment(kernels=not options.no_kernels)
        if options.print_env:
            _print_variables(variables(env), options.format)
            return 0
        launch(command, env)
    except CommandNotFound as error:
        return _complain(str(error), NOT_FOUND)
    except (BuildError, EmulatorRefused) as error:
        return _complain(str(error), REFUSED)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def _print_variables(chosen: dict[str, str], form: str) -> None:
    if form == "json":
        print(json.dumps(chosen, indent=2))
    else:
        for name, value in chosen.items():
            print(f"export {name}={shlex.quote(value)}")


def _complain(message: str, status: int) -> int:
    print(f"torch-npu-emulator: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
