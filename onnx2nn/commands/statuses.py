"""Exit statuses of the commands."""

OK, FAILED, UNUSABLE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
"""Success; a comparison or check failed; the input or an option cannot be used; SIGINT; SIGPIPE."""
