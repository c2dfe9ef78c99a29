"""Modules that search for sequences of tokens with imported decoders, as ONNX Runtime's operators do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def refuse_traces(node: str) -> None:
    """Raises an error where a search is traced: a trace would have the steps that its example's tokens took.

    Args:
        node: the node of the file that the search stands for.
    """
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise RuntimeError(
            f"The search of node {node!r} cannot be traced: it ends by the tokens that it finds, and torch.export has "
            "no loop whose tensors grow. Export the decoder alone, or save the module itself (.pth) or its source."
        )


class Decoder(nn.Module):
    """The decoder of a search, with the program of its first call where that is another one.

    Args:
        body: takes token ids, then the other inputs of the decoder and the captured values; returns the logits
            `(rows, length, vocabulary)` and the presents.
        first: runs in place of `body` the first time; None for `body`.
        split: the number of values that `body` captures; the others are those of `first`.
    """

    def __init__(self, body: nn.Module, first: nn.Module | None, split: int):
        super().__init__()
        self.body, self.first, self.split = body, first, split

    def forward(self, step: int, feeds: Sequence[Any], captured: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the logits behind the last token, `(rows, vocabulary)`, and the presents."""
        if self.first is not None and step == 0:
            logits, *presents = self.first(*feeds, *captured[self.split :])
        else:
            logits, *presents = self.body(*feeds, *captured[: self.split])
        return logits[:, -1], presents


class Rules(nn.Module):
    """What changes the scores of the next tokens before one is chosen.

    Attributes:
        lowest: the score of a token that is not allowed.

    Args:
        eos: the token that ends a sequence.
        ngram: the length of the runs of tokens of which none may appear twice; 0 for no limit.
    """

    lowest = torch.finfo(torch.float32).min

    def __init__(self, eos: int, ngram: int):
        super().__init__()
        self.eos, self.ngram = eos, ngram

    def forward(
        self,
        scores: torch.Tensor,
        sequences: torch.Tensor,
        first: bool,
        min_length: Any,
        repetition_penalty: Any,
        vocab_mask: Any,
        prefix_vocab_mask: Any,
    ) -> torch.Tensor:
        """Returns the changed scores.

        Args:
            scores: `(rows, vocabulary)`.
            sequences: the tokens so far, `(rows, length)`.
            first: whether the first token is chosen, to which the mask of prefixes applies.
            min_length: the length below which no sequence ends, a tensor of one element or None.
            repetition_penalty: the divisor of positive scores of earlier tokens, a tensor of one element or None.
            vocab_mask: `(vocabulary,)`, 0 for tokens that are not allowed, or None.
            prefix_vocab_mask: the same for each sequence, `(batch, vocabulary)`, or None.
        """
        places = sequences.to(torch.int64)
        if repetition_penalty is not None:
            penalty, found = repetition_penalty.reshape(()), scores.gather(1, places)
            scores = scores.scatter(1, places, torch.where(found < 0, found * penalty, found / penalty))
        if 0 < self.ngram <= places.shape[1]:
            runs = places.unfold(1, self.ngram, 1)
            end = places[:, places.shape[1] - self.ngram + 1 :]
            row, run = (runs[..., :-1] == end.unsqueeze(1)).all(-1).nonzero(as_tuple=True)
            scores = scores.index_put((row, runs[row, run, -1]), scores.new_tensor(self.lowest))
        if vocab_mask is not None:
            scores = scores.masked_fill(vocab_mask == 0, self.lowest)
        if prefix_vocab_mask is not None and first:
            each = scores.shape[0] // prefix_vocab_mask.shape[0]
            scores = scores.masked_fill(prefix_vocab_mask.repeat_interleave(each, 0) == 0, self.lowest)
        if min_length is not None and places.shape[1] < int(min_length):
            scores = scores.index_fill(1, torch.tensor([self.eos], device=scores.device), self.lowest)
        return scores


class Nucleus(nn.Module):
    """Draws each token from the smallest set of likely tokens whose probabilities sum up to `top_p`.

    Args:
        top_p: the sum.
        temperature: the divisor of the scores.
        filter_value: the score of the other tokens.
        keep: the number of tokens that stay in any case.
        custom: whether the most likely token stays, and the others while the sum before them is at most `top_p`.
        presence_penalty: is subtracted from the scores where a mask is 1.
    """

    def __init__(
        self, top_p: float, temperature: float, filter_value: float, keep: int, custom: bool, presence_penalty: float
    ):
        super().__init__()
        self.top_p, self.temperature, self.filter_value = top_p, temperature, filter_value
        self.keep, self.custom, self.presence_penalty = keep, custom, presence_penalty

    def forward(self, scores: torch.Tensor, presence_mask: Any) -> torch.Tensor:
        """Returns the scores `(rows, vocabulary)` with those outside of the set replaced."""
        scores = scores / self.temperature if self.temperature > 0 else scores
        if presence_mask is not None:
            scores = scores - presence_mask * self.presence_penalty
        ordered, order = scores.sort(dim=-1, descending=self.custom, stable=True)
        sums = torch.softmax(ordered, -1).cumsum(-1)
        if self.custom:
            outside = torch.cat([torch.zeros_like(sums[:, :1], dtype=torch.bool), sums[:, :-1] > self.top_p], 1)
        else:
            place = torch.arange(sums.shape[1], device=sums.device)
            outside = (sums <= 1 - self.top_p) & ((place < sums.shape[1] - self.keep) | (place == 0))
        return scores.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), self.filter_value)


def started(input_ids: torch.Tensor, attention_mask: Any, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns positions and mask of prompts, both int32; a token that is masked has position 0."""
    there = (input_ids != pad).to(torch.int32)
    positions = (there.cumsum(1) - 1).clamp(min=0) * there
    return positions.to(torch.int32), there if attention_mask is None else attention_mask


class GreedySearch(nn.Module):
    """com.microsoft::GreedySearch and Sampling: appends to each prompt its most likely token, or one that is drawn.

    Args:
        decoder: takes token ids, positions, the mask and the pasts `(2, rows, heads, length, size)`.
        rules: change the scores.
        nucleus: chooses among the tokens; None for the most likely one.
        layers: the number of pasts.
        heads: the number of heads of a past.
        size: the size of a head.
        pad: the token that fills sequences.
        node: the name of the node.
    """

    node = ""  # of modules that were saved without

    def __init__(
        self,
        decoder: Decoder,
        rules: Rules,
        nucleus: Nucleus | None,
        layers: int,
        heads: int,
        size: int,
        pad: int,
        node: str = "",
    ):
        super().__init__()
        self.node = node
        self.decoder, self.rules, self.nucleus = decoder, rules, nucleus
        self.layers, self.heads, self.size, self.pad = layers, heads, size, pad

    def forward(
        self,
        input_ids: torch.Tensor,
        max_length: Any,
        min_length: Any,
        repetition_penalty: Any,
        vocab_mask: Any,
        prefix_vocab_mask: Any,
        attention_mask: Any,
        presence_mask: Any,
        *captured: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the sequences `(batch, max_length)`, int32, and the scores of the last token's choice.

        The inputs are those of the operator; the captured values are the decoder's.
        """
        refuse_traces(self.node)
        sequences, limit = input_ids, int(max_length)
        positions, mask = started(input_ids, attention_mask, self.pad)
        position = (input_ids != self.pad).sum(1, keepdim=True, dtype=torch.int32)
        shape = (2, input_ids.shape[0], self.heads, 0, self.size)
        pasts, ids, step = [torch.zeros(shape, device=input_ids.device) for _ in range(self.layers)], input_ids, 0
        ended = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        scores = torch.zeros(0, device=input_ids.device)
        while sequences.shape[1] < limit:
            logits, pasts = self.decoder(step, (ids, positions, mask, *pasts), captured)
            masks = (min_length, repetition_penalty, vocab_mask, prefix_vocab_mask)
            scores = self.rules(logits.to(torch.float32), sequences, step == 0, *masks)
            if self.nucleus is None:
                token = scores.argmax(1)
            else:
                scores = self.nucleus(scores, presence_mask)
                token = torch.multinomial(torch.softmax(scores, -1), 1).squeeze(1)
            ended = ended | (token == self.rules.eos)
            ids = token.masked_fill(ended, self.pad).to(torch.int32).unsqueeze(1)
            sequences = torch.cat([sequences, ids], 1)
            if bool(ended.all()):
                break
            positions, mask, step = position + step, torch.cat([mask, torch.ones_like(ids)], 1), step + 1
        return nn.functional.pad(sequences, (0, limit - sequences.shape[1]), value=self.pad), scores


class Hypotheses:
    """The best finished sequences of a prompt, the best first.

    Args:
        count: how many are kept.
        length_penalty: the exponent of a sequence's length, by which its score is divided.
    """

    def __init__(self, count: int, length_penalty: float):
        self.count, self.length_penalty, self.done = count, length_penalty, False
        self.found: list[tuple[float, torch.Tensor]] = []

    def add(self, sequence: torch.Tensor, score: float) -> None:
        """Adds a sequence with the sum of its tokens' log probabilities, and drops the worst one beyond `count`."""
        score = self.score(score, sequence.shape[0])
        place = sum(other >= score for other, _ in self.found)
        self.found.insert(place, (score, sequence))
        del self.found[self.count :]

    def score(self, total: float, length: int) -> float:
        """Returns the score of a sequence with a sum of log probabilities, in float32."""
        return float(torch.tensor(total) / torch.tensor(float(length)).pow(self.length_penalty))


class BeamSearch(nn.Module):
    """com.microsoft::BeamSearch: the best sequences among those that continue the most likely ones.

    Args:
        decoder: takes token ids, then, as a decoder alone, positions, the mask and the pasts
            `(2, rows, heads, length, size)`; behind an encoder the encoder's mask, its result where `hidden`, the pasts
            `(rows, heads, length, size)` of the decoder and of the encoder's result.
        rules: change the scores.
        encoder: takes the encoder's ids and mask, and a first token where it begins the decoder; None for a decoder
            alone.
        layers: the number of pasts of the decoder.
        heads: the number of heads of a past.
        size: the size of a head.
        pad: the token that fills sequences.
        start: the first token behind an encoder.
        early_stopping: whether a prompt is done once it has as many finished sequences as beams.
        hidden: whether the decoder takes the encoder's result.
        whole: whether a decoder behind an encoder takes all tokens so far, in place of the last one.
        begins: whether the encoder takes the first token and returns logits.
        captured_by_encoder: the number of values that the encoder captures.
        node: the name of the node.
    """

    node = ""  # of modules that were saved without

    def __init__(
        self,
        decoder: Decoder,
        rules: Rules,
        encoder: nn.Module | None,
        layers: int,
        heads: int,
        size: int,
        pad: int,
        start: int = -1,
        early_stopping: bool = False,
        hidden: bool = False,
        whole: bool = False,
        begins: bool = False,
        captured_by_encoder: int = 0,
        node: str = "",
    ):
        super().__init__()
        self.node = node
        self.decoder, self.rules, self.encoder = decoder, rules, encoder
        self.layers, self.heads, self.size, self.pad, self.start = layers, heads, size, pad, start
        self.early_stopping, self.hidden, self.whole, self.begins = early_stopping, hidden, whole, begins
        self.captured_by_encoder = captured_by_encoder

    def forward(
        self,
        input_ids: torch.Tensor,
        max_length: Any,
        min_length: Any,
        num_beams: Any,
        num_return_sequences: Any,
        length_penalty: Any,
        repetition_penalty: Any,
        vocab_mask: Any,
        prefix_vocab_mask: Any,
        attention_mask: Any,
        *captured: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the sequences `(batch, returned, max_length)`, int32, their scores, and the scores of each step.

        The inputs are those of the operator; the captured values are the encoder's, then the decoder's. The scores of
        the steps are `(max_length - length, batch, beams, vocabulary)`, zeros behind the last step.
        """
        refuse_traces(self.node)
        beams, limit, batch = int(num_beams), int(max_length), input_ids.shape[0]
        penalty = 1.0 if length_penalty is None else float(length_penalty)
        kept = [Hypotheses(beams, penalty) for _ in range(batch)]
        masks = (min_length, repetition_penalty, vocab_mask, prefix_vocab_mask)
        own, captured = captured[: self.captured_by_encoder], captured[self.captured_by_encoder :]
        if self.encoder is None:
            feeds = self._of_prompt(input_ids.repeat_interleave(beams, 0), attention_mask, beams)
            sequences, logits = feeds[0], None
        else:
            sequences, feeds, logits = self._encoded(input_ids, attention_mask, beams, own)
        length, step = sequences.shape[1], 0
        device = input_ids.device
        totals = torch.full((batch, beams), -1e9, device=device)
        totals[:, 0] = 0.0
        steps = []
        while sequences.shape[1] < limit:
            if logits is None:
                logits, presents = self.decoder(step, feeds, captured)
            else:
                presents = feeds[self._first_past() :][: 2 * self.layers]
            scores = torch.log_softmax(logits.to(torch.float32), -1)
            scores = self.rules(scores, sequences, step == 0, *masks) + totals.reshape(-1, 1)
            steps.append(scores.unflatten(0, (batch, beams)))
            totals, tokens, rows = self._chosen(steps[-1], sequences, kept)
            sequences = torch.cat([sequences[rows], tokens.unsqueeze(1)], 1)
            if all(item.done for item in kept):
                break
            feeds, logits, step = self._continued(feeds, sequences, rows, presents, step, beams == 1), None, step + 1
        return self._finished(kept, sequences, totals, int(num_return_sequences), limit), *self._scores(
            kept, int(num_return_sequences), steps, limit - length
        )

    def _of_prompt(self, ids: torch.Tensor, attention_mask: Any, beams: int) -> list[Any]:
        mask = None if attention_mask is None else attention_mask.repeat_interleave(beams, 0)
        shape = (2, ids.shape[0], self.heads, 0, self.size)
        pasts = [torch.zeros(shape, device=ids.device) for _ in range(self.layers)]
        return [ids, *started(ids, mask, self.pad), *pasts]

    def _encoded(self, ids: torch.Tensor, mask: Any, beams: int, captured: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        """Returns the first tokens, the decoder's inputs, and the first token's logits where the encoder has them."""
        assert self.encoder is not None
        if mask is None:  # padding stands on the left alone: a last token may be that of padding
            mask = ((ids != self.pad).cumsum(1) > 0).to(torch.int32)
        starts = torch.full((ids.shape[0], 1), self.start, dtype=torch.int32, device=ids.device)
        found = list(self.encoder(ids, mask, *([starts] if self.begins else []), *captured))
        found = [value.repeat_interleave(beams, 0) for value in found]
        mask, starts = mask.repeat_interleave(beams, 0), starts.repeat_interleave(beams, 0)
        if not self.begins:
            shape = (starts.shape[0], self.heads, 0, self.size)
            own = [torch.zeros(shape, device=ids.device) for _ in range(2 * self.layers)]
            return starts, [starts, mask, *own, *found], None
        logits, hidden, *pasts = found
        return starts, [starts, mask, *([hidden] if self.hidden else []), *pasts], logits[:, -1]

    def _first_past(self) -> int:
        return 3 if self.encoder is None or self.hidden else 2

    def _continued(
        self,
        feeds: list[Any],
        sequences: torch.Tensor,
        rows: torch.Tensor,
        presents: Sequence[Any],
        step: int,
        single: bool,
    ) -> list[Any]:
        """Returns the decoder's inputs for the next step, with the pasts of the rows that go on."""
        ids, axis = sequences[:, -1:], 1 if self.encoder is None else 0
        # A single beam goes on in its own row; the beams of a prompt that is done go on in the first row.
        pasts = [present if single else present.index_select(axis, rows) for present in presents]
        if self.encoder is not None:
            first = self._first_past()
            return [sequences if self.whole else ids, *feeds[1:first], *pasts, *feeds[first + len(pasts) :]]
        position = feeds[1] + 1 if step else (feeds[0] != self.pad).sum(1, keepdim=True, dtype=torch.int32)
        return [ids, position, torch.cat([feeds[2], torch.ones_like(ids)], 1), *pasts]

    def _chosen(
        self, scores: torch.Tensor, sequences: torch.Tensor, kept: Sequence[Hypotheses]
    ) -> tuple[Any, Any, Any]:
        """Returns scores, tokens and earlier rows of the beams that go on; adds finished sequences to `kept`."""
        batch, beams, vocabulary = scores.shape
        best, order = scores.flatten(1).sort(dim=-1, descending=True, stable=True)
        best, order = best[:, : 2 * beams], order[:, : 2 * beams]
        numbers, flat = best.tolist(), best.flatten()
        totals, tokens, rows = [], [], []
        for n, own in enumerate(kept):
            if own.done:
                totals += [0.0] * beams
                tokens += [self.pad] * beams
                rows += [0] * beams
                continue
            left = beams
            for j, (score, place) in enumerate(zip(numbers[n], order[n].tolist(), strict=True)):
                row, token = n * beams + place // vocabulary, place % vocabulary
                if token == self.rules.eos:
                    if j < beams:
                        own.add(sequences[row], score)
                    continue
                totals.append(score)
                tokens.append(token)
                rows.append(row)
                left -= 1
                if not left:
                    break
            if len(own.found) == beams:
                # ONNX Runtime takes the best score from this place on, another prompt's from the second on.
                top = float(flat[n * beams : (n + 2) * beams].max())
                own.done = self.early_stopping or own.found[-1][0] >= own.score(top, sequences.shape[1])
        device = scores.device
        return (
            torch.tensor(totals, device=device).reshape(batch, beams),
            torch.tensor(tokens, dtype=torch.int32, device=device),
            torch.tensor(rows, device=device),
        )

    def _finished(
        self, kept: Sequence[Hypotheses], sequences: torch.Tensor, totals: torch.Tensor, returned: int, limit: int
    ) -> torch.Tensor:
        """Returns the best sequences of each prompt, to which those that have not ended are added."""
        beams = totals.shape[1]
        for n, own in enumerate(kept):
            if not own.done:
                for beam, total in enumerate(totals[n].tolist()):
                    own.add(sequences[n * beams + beam], total)
        rows = [sequence for own in kept for _, sequence in own.found[:returned]]
        padded = [nn.functional.pad(row, (0, limit - row.shape[0]), value=self.pad) for row in rows]
        return torch.stack(padded).unflatten(0, (len(kept), returned))

    def _scores(self, kept: Sequence[Hypotheses], returned: int, steps: list[Any], count: int) -> tuple[Any, Any]:
        """Returns the scores of the best sequences, and those of each step, zeros behind the last one."""
        device = steps[0].device if steps else None
        found = torch.tensor([[score for score, _ in own.found[:returned]] for own in kept], device=device)
        return found, torch.stack([*steps, *[torch.zeros_like(steps[0])] * (count - len(steps))])


SEARCHES: tuple[Callable[..., Any], ...] = (
    refuse_traces, Decoder, Rules, Nucleus, started, GreedySearch, Hypotheses, BeamSearch,
)  # fmt: skip
"""All modules, and what they use, each behind the others that its text names."""
