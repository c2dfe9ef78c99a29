"""Random calls of single operators: attributes, shapes, types, left-out inputs, constants and open dimensions.

Short names in the files: `d` draws, `a` holds attributes, `s` is a shape, `t` a type, `ax` an axis, `k` a kernel or a
count, `b` a batch, `n` heads and `h` the width of a head in attention, `g` groups, `ci` and `co` channels.
"""
