"""What a transfer did, in plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx2nn.errors import shown_name


@dataclass(frozen=True)
class PlacedWeight:
    """A weight of the module that was filled.

    Attributes:
        key: in the module's state_dict.
        sources: the tensors of the imported file that it comes from.
        how: what was solved, `""` where it is the file's tensor up to its layout.
    """

    key: str
    sources: tuple[str, ...]
    how: str = ""

    def __str__(self) -> str:
        names = ", ".join(map(shown_name, self.sources)) or "(nothing)"
        return f"{self.key} ← {names}{f': {self.how}' if self.how else ''}"


@dataclass
class TransferReport:
    """The weights of a file in a module.

    Attributes:
        by: `"names"` or `"structure"`.
        placed: the weights that were filled.
        kept: keys of the module that its program does not use; they keep their values.
        unused: tensors of the file that fill no weight: constants of its program.
        difference: the largest difference of the outputs in float64, relative to the largest element.
        runs: the number of inputs that were compared.
    """

    by: str
    placed: list[PlacedWeight] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    difference: float = 0.0
    runs: int = 0

    @property
    def verdict(self) -> str:
        """The closing line."""
        solved = sum(bool(weight.how) for weight in self.placed)
        return (
            f"OK {len(self.placed)} weights placed by {self.by}, {solved} of them solved, {len(self.kept)} kept; "
            f"outputs differ by {self.difference:.1e} of the largest in {self.runs} runs"
        )

    def __str__(self) -> str:
        kept = [f"{key} keeps its value: the program does not use it" for key in self.kept]
        unused = [f"{shown_name(name)} of the file fills no weight" for name in self.unused]
        return "\n".join([*map(str, self.placed), *kept, *unused, self.verdict])
