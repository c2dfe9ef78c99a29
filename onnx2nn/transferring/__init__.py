"""The weights of a file in a module that exists: `onnx2nn.transfer`."""

from onnx2nn.transferring.filling import transfer
from onnx2nn.transferring.transfer_report import PlacedWeight, TransferReport

__all__ = ["PlacedWeight", "TransferReport", "transfer"]
