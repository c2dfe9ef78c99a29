"""The op table's rows, one file a family of operators.

`optable.registry` imports every file of this folder, so that a new file needs no entry elsewhere; the files of
`contrib` hold operators of com.microsoft alone, and are imported at the first question about that domain. A row body
takes a namespace and the operator's inputs and attributes; it returns the outputs. Bodies also become text of generated
sources (`output.python_source.inlining`), hence the plain Python.
"""
