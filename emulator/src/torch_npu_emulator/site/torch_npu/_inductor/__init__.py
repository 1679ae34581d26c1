"""The inductor backend, imported by the host where Triton is active. The emulated device compiles nothing."""
