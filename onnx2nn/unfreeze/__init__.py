"""Makes fixed dimensions of a file dynamic.

A model, its plan, and the axes to make dynamic come in. Constants that hold a fixed size are replaced in the model by
nodes that compute the size. The import of the changed model, run at several sizes, goes out. `loading` calls
`search.import_dynamic`.
"""
