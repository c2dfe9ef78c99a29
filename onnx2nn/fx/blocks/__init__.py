"""Nested programs: a flat program in, a tree of modules that run out."""
