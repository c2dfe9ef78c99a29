"""The op table's rows, one file a family of operators.

`optable.registry` imports a file at the first question about one of its operators: `optable/families.json`, which
scripts/tables.py writes, says which file has which operators; what it lacks is looked for in all files. Those of
`contrib` hold operators of com.microsoft alone. A row body takes a namespace and the operator's inputs and attributes;
it returns the outputs. Bodies also become text of generated sources (`output.python_source.inlining`), hence the plain
Python.
"""
