"""Small tools without knowledge of models: element types, files, names, extras, the terminal, the garbage collector.

Plain Python values come in and go out. Every room may call this one; it imports nothing but the errors.
"""
