"""Compiling where torch's AOTAutograd cache would assert on what the host's compiler returns."""
