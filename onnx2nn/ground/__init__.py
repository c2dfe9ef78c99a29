"""What every room may use and that uses none: element types, files, names, extras, the terminal, the collector."""
