"""Compiles and drops many graphs: `python compile_often.py TIMES`, one process a rank."""

import sys

from oneflow_bridge.runtime import import_oneflow

import_oneflow()


def main() -> None:
    """See the module."""
    from oneflow_bridge.to_onnx.trace import _forget_names

    for _ in range(int(sys.argv[1])):
        _forget_names()


if __name__ == "__main__":
    main()
