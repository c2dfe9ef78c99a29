"""Names that modules saved by onnx2nn 0.1 hold."""

from oneflow_bridge.from_onnx.subgraphs import BatchedScan, If, Loop, Scan, SequenceMap

__all__ = ["BatchedScan", "If", "Loop", "Scan", "SequenceMap"]
