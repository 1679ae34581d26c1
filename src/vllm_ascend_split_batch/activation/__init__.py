"""fi-gelu: GeGLU with the exact error function."""
