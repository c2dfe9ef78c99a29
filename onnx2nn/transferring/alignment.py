"""Pairs the calls of two programs by their structure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx2nn.errors import InputError, listed
from onnx2nn.transferring.programs import COMMUTATIVE, Call, Program

_Colours = dict[Call, int]


@dataclass
class Alignment:
    """One way to pair the calls of a module with those of a file.

    Attributes:
        pairs: the module's call → the file's.
        choices: where structure does not decide: a call of the module, the candidates of the file, of which the first
            was taken.
    """

    pairs: dict[Call, Call]
    choices: list[tuple[Call, list[Call]]] = field(default_factory=list)


def align(module: Program, file: Program, decided: Sequence[tuple[Call, Call]] = ()) -> Alignment:
    """Pairs the calls of two programs; what structure leaves undecided, in the order of the programs.

    Colours of calls are refined by the colours around them (Weisfeiler and Leman) until they are stable, in both
    programs at once.

    Args:
        module: the module's program.
        file: the file's program.
        decided: pairs that were chosen.

    Raises:
        InputError: the structures differ; the text lists the calls that have no partner.
    """
    labels = [{call: call.label for call in program.calls} for program in (module, file)]
    _refuse_others(module, file)
    colours: _Colours = _numbered({**labels[0], **labels[1]})
    fresh = -1
    for ours, theirs in decided:
        colours[ours] = colours[theirs] = fresh
        fresh -= 1
    choices = []
    while True:
        colours = _refined(colours, module, file)
        tied = _first_tie(colours, module, file)
        if tied is None:
            break
        call, candidates = tied
        choices.append((call, candidates))
        colours[call] = colours[candidates[0]] = fresh
        fresh -= 1
    partner = {colours[call]: call for call in file.calls}
    return Alignment({call: partner[colours[call]] for call in module.calls}, choices)


def _numbered(signatures: dict[Call, object]) -> _Colours:
    numbers: dict[object, int] = {}
    return {call: numbers.setdefault(signature, len(numbers)) for call, signature in signatures.items()}


def _refined(colours: _Colours, module: Program, file: Program) -> _Colours:
    calls = [*module.calls, *file.calls]
    readers: dict[Call, list[tuple[int, Call]]] = defaultdict(list)
    for call in calls:
        for position, source in enumerate(call.sources):
            readers[source].append((0 if call.kind in COMMUTATIVE else position, call))
    count = len(set(colours.values()))
    while True:
        signatures: dict[Call, object] = {}
        for call in calls:
            before = [colours[source] for source in call.sources]
            behind = sorted((position, colours[reader]) for position, reader in readers[call])
            ordered = sorted(before) if call.kind in COMMUTATIVE else before
            signatures[call] = (colours[call], tuple(ordered), tuple(behind))
        refined = _numbered(signatures)
        if len(set(refined.values())) == count:
            _refuse_uneven(colours, module, file)
            return refined
        colours, count = refined, len(set(refined.values()))


def _first_tie(colours: _Colours, module: Program, file: Program) -> tuple[Call, list[Call]] | None:
    members = defaultdict(list)
    for call in file.calls:
        members[colours[call]].append(call)
    tied = [call for call in module.calls if len(members[colours[call]]) > 1]
    if not tied:
        return None
    call = next((call for call in tied if call.weights), tied[0])
    return call, members[colours[call]]


def _refuse_others(module: Program, file: Program) -> None:
    """Refuses programs of other layers."""
    ours, theirs = (Counter(call.label for call in program.calls) for program in (module, file))
    texts = []
    for more, title, program in ((ours - theirs, "module", module), (theirs - ours, "file", file)):
        for label, count in more.items():
            same = [str(call) for call in program.calls if call.label == label]
            texts.append(f"{title}: {count} of {len(same)} without a partner: {', '.join(same[:4])}")
    if texts:
        raise InputError("\n".join(["The module and the file have different layers:", *listed(texts, "layers")]))


def _refuse_uneven(colours: _Colours, module: Program, file: Program) -> None:
    """Refuses programs whose calls are connected in other ways."""
    counts = [Counter(colours[call] for call in program.calls) for program in (module, file)]
    if counts[0] == counts[1]:
        return
    texts = [
        f"{title}: {call}"
        for title, program, other in (("module", module, counts[1]), ("file", file, counts[0]))
        for call in program.calls
        if other[colours[call]] == 0
    ]
    raise InputError("\n".join(["The module and the file connect their layers differently:", *listed(texts, "layers")]))
