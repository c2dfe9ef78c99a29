"""The part of docs/conformance.md on ONNX Runtime's own operators (com.microsoft)."""

from __future__ import annotations

from collections.abc import Mapping

LEFT_OUT = {
    "its timestamps and cross products need the inputs of one tool; the search is that of BeamSearch, not done yet": (
        "WhisperBeamSearch",
    ),
    "its state of several calls has rules for capacity and reuse that no kernel here can judge": (
        "PackedSparseAttentionIndexer",
    ),
    "where its kernel for one kind of GPU rounds to int8 in between is not documented": (
        "QOrderedAttention", "QOrderedLongformerAttention",
    ),
    "a compiled program of another runtime": ("EPContext", "Snpe"),
    "the format of its bytes is not documented": ("DequantizeBFP", "QuantizeBFP"),
    "its input is a sparse tensor at run time, for which a module has no type": ("SparseToDenseMatMul",),
    "it writes records to an address in memory that an input holds": ("SpeculativePrefixCommit",),
}  # fmt: skip
"""Why operators of ONNX Runtime have no row."""

PARTS = {
    "MoEPacked, MatMulPacked, GatherPacked": "the formats IQ2 and IQ3, whose numbers are entries of large codebooks",
    "SparseAttentionIndexer": "policy_mode csa, masks and caches with room",
    "DynamicSparseAttention, SparsePagedAttention": "validation, rotary_offset, and quantised pages",
    "CausalConvWithState": "several spatial dimensions, and slices of channels and states",
    "BeamSearch, GreedySearch, Sampling": "caches that past and present share, decoder_input_ids and logits processors",
}
"""What rows refuse of their operators, of the newest ones."""


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
        f"{len(rows)} of the {len(judges)} operators of com.microsoft in ONNX Runtime 1.32 have a row.",
        f"{measured} of them are judged by ONNX Runtime; the other {len(rows) - measured} have no CPU kernel",
        "that the cases can call, and are judged by formulas of its documentation or by outputs stored in the case,",
        "which names the source.",
        "Attribute values and inputs outside of what is compared are refused with a message.",
        "",
        "Without a row:",
        "",
    ]
    lines += [f"- {', '.join(operators)}: {reason}." for reason, operators in LEFT_OUT.items()]
    lines += ["", "Refused of what the schemas allow:", ""]
    lines += [f"- {operators}: {what}." for operators, what in PARTS.items()]
    lines += [
        "",
        "BeamSearch, GreedySearch and Sampling are loops in Python that run the imported decoder. to_python writes",
        "them; torch.export, torch.jit.trace and export_onnx are refused, since a trace would have the steps of its",
        "example, and torch.export has no loop whose tensors grow. Behind the last token of all sequences GreedySearch",
        "has the padding, where ONNX Runtime's memory is not set. Sampling draws with torch; its cases leave one token",
        "to draw.",
        "",
        "Files saved at ORT_ENABLE_ALL hold operators of com.microsoft.nchwc, all eight of which have rows. Their",
        "weights are laid out for the processor that wrote the file, in blocks of 8 or 16 channels; the file does not",
        "say which. Like ONNX Runtime, an import takes the blocks of the processor that it runs on (x86 with AVX2: 8,",
        "with AVX-512: 16). A file of another one is refused where its channels show it, and otherwise computes",
        "something else, in ONNX Runtime too. Save at ORT_ENABLE_EXTENDED for other machines.",
        "",
    ]
    return lines
