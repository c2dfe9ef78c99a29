"""The part of docs/conformance.md on ONNX Runtime's own operators (com.microsoft)."""

from __future__ import annotations

from collections.abc import Mapping

LEFT_OUT = {
    "a search whose steps are a subgraph: the importer has no module for it yet": (
        "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
    ),
    "kernels for GPUs alone define ties and state that the documentation does not give in full": (
        "DynamicSparseAttention", "PackedSparseAttentionIndexer", "SparseAttentionIndexer", "SparsePagedAttention",
    ),
    "where its kernel for one kind of GPU rounds to int8 in between is not documented": (
        "QOrderedAttention", "QOrderedLongformerAttention",
    ),
    "how masked queries and the window's edges count is not documented": ("LongformerAttention",),
    "a compiled program of another runtime": ("EPContext", "Snpe"),
    "the format of its bytes is not documented": ("DequantizeBFP", "QuantizeBFP"),
    "its input is a sparse tensor at run time, for which a module has no type": ("SparseToDenseMatMul",),
    "a recurrent attention that no exporter of today writes; not done yet": ("AttnLSTM",),
}  # fmt: skip
"""Why operators of ONNX Runtime have no row."""

NEWER = (
    "ConvStateReplay", "GatedDeltaNetStateReplay", "GatherPacked", "HyperConnectionLowRankMix", "Mamba2Verify",
    "MatMulNBitsQLoRA", "MatMulPacked", "MoEGroupRouter", "MoEPacked", "PackedSparseAttentionIndexerMerge",
    "RMSNormRotary", "RouterGateUpProj", "SpeculativePrefixCommit", "SwiGLU",
)  # fmt: skip
"""Operators that ONNX Runtime 1.32 adds to the 136 of 1.31, which the tests run with; none has a row yet."""


def section(judges: Mapping[str, str]) -> list[str]:
    """Returns the lines of the section.

    Args:
        judges: operator of com.microsoft → who judges its cases, `onnxruntime` or `stored` for a formula or data in the
            case; `""` for an operator without a row.
    """
    rows = [operator for operator, judge in judges.items() if judge]
    measured = sum(judge == "onnxruntime" for judge in judges.values())
    lines = [
        "## ONNX Runtime's own operators",
        "",
        f"{len(rows)} of the {len(judges)} operators of com.microsoft in ONNX Runtime 1.31 have a row.",
        f"{measured} of them are judged by ONNX Runtime; the other {len(rows) - measured} have no CPU kernel",
        "that the cases can call, and are judged by formulas of its documentation or by outputs stored in the case,",
        "which names the source.",
        "Attribute values and inputs outside of what is compared are refused with a message.",
        "",
        "Without a row:",
        "",
    ]
    lines += [f"- {', '.join(operators)}: {reason}." for reason, operators in LEFT_OUT.items()]
    lines += ["", f"ONNX Runtime 1.32 adds {len(NEWER)} operators, which have none: {', '.join(NEWER)}.", ""]
    lines += [
        "Its optimiser's domain com.microsoft.nchwc (files saved after ORT_ENABLE_ALL) has no rows: its weights",
        "are laid out for the processor that wrote the file, whose block size the file does not state.",
        "Save at ORT_ENABLE_EXTENDED.",
        "",
    ]
    return lines
