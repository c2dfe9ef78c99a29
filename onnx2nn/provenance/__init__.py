"""What a file still knows of its origin: the exporter's metadata, the author's names of modules and weights."""
