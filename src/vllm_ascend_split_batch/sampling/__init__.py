"""fi-sampling: which route a sampling step takes, with which random words, and where it meets the host."""
