"""The ATB operator library."""
