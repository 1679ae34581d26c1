"""The compiled part of the emulator: torch's PrivateUse1 backend on host memory, and its build."""
