"""The ACL runtime's Python binding, as far as the host's import of it goes."""
