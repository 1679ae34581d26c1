"""Split-batch planning: how to cut a decode batch so that captured graphs replay few padding rows."""
