"""The op table's rows, one file a family. A file here is found by itself: nothing else names it."""
