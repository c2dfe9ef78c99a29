"""The import of nodes with graphs: If, Loop, Scan, SequenceMap, Gradient, and searches with a decoder."""
