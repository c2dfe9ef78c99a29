"""Random calls of single operators: attributes, shapes, types, left-out inputs, constants and open dimensions."""
