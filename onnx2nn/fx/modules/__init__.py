"""The module of an import: its program, code and pickles, its state and float type, and the errors of its calls."""
