"""Work between the host's operators that has no effect: copies onto a known destination, buffers that nobody reads."""
