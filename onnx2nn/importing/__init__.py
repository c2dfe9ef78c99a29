"""What the importers of both frameworks share: a planned model comes in, a `Builder` of the framework makes the rest.

Here are the plan of a model, what its inputs are and its nodes say, the walk over its graphs, and where constants and
layers stand in the module. The rewrites before an import and the rooms of both frameworks call it.
"""
