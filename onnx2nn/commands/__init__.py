"""The command line: arguments come in, lines and an exit status go out. Nothing of the library calls it."""
