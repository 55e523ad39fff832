"""What goes into a module, and what comes out: several inputs by name or in order, scores as an output's logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import coterie as ct
from coterie.data import Federation
from coterie.data.validation import with_validation
from coterie.engines import Engine, Serial, Vectorized
from modules import Answering, Output
from same_numbers import graphed_for
from several_inputs import FORMS, Attention, ByName, InOrder, Packed, drawn, federation, module
from toys import experiment, models

ENGINES: dict[str, Callable[[], Engine]] = {
    "serial": Serial,
    "vectorized": lambda: Vectorized(2),
    "graphed": lambda: graphed_for(2),
    "graphed, one by one": lambda: graphed_for(1),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_a_plain_loop(form: type[Attention], engine: str) -> None:
    """Of torch.optim, to 1e-12, with every client's samples in one batch."""
    alone = ct.algorithms.local(epochs=3, batch_size=None, clip=None, lr=0.1, lr_decay=1.0, momentum=0.9)
    found = models(experiment(module(form, 0.0), federation(form), alone, ENGINES[engine]()), 1)
    for client, (tokens, mask, label) in enumerate(drawn()):
        own = module(form, 0.0)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9, weight_decay=alone.settings["weight_decay"])
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own.scores(tokens, mask), label).backward()
            optimizer.step()
        for name, value in own.named_parameters():
            torch.testing.assert_close(found[name][client], value.detach(), rtol=0, atol=1e-12)


METHODS = {
    "dfedpgp": {"topology": "random-push:1", "personal_lr": 0.05},
    "dfedsam": {"topology": "ring"},
    "fedavg_p": {"exact_personal": True, "steps": 2, "epochs": None, "participation": 1.0},
    "scaffold": {"participation": 1.0},
    "fedlmt": {"participation": 1.0, "rank_ratio": 0.5, "keep_layers": "none"},
    "fedrod": {"participation": 1.0},
}


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        ("dfedpgp", "vectorized"),
        ("dfedsam", "graphed"),
        ("fedavg_p", "vectorized"),
        ("scaffold", "serial"),
        ("fedlmt", "graphed"),
        ("fedrod", "serial"),
    ],
)
def test_the_form_of_the_inputs_changes_no_bit(method: str, engine: str) -> None:
    """Shuffled, padded, with dropout that is the same in every form; validation samples are kept out of it."""
    alg = ct.algorithms.build(method, **{"epochs": 2, "batch_size": 3, "lr": 0.05, **METHODS[method]})
    found = []
    for form in FORMS:
        e = experiment(module(form), with_validation(federation(form), 0.2, 0), alg, ENGINES[engine]())
        e.check()
        found.append((models(e, 2), e.flops_per_sample(e.model)))
    for others, flops in found[1:]:
        assert flops == found[0][1] > 0
        assert all(torch.equal(v, others[name]) for name, v in found[0][0].items())


def linear(answer: type) -> nn.Module:
    """A linear layer with fixed values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Answering(answer)


def pairs(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Six numbers per sample, near their class."""
    g = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 3, (size,), generator=g) for size in sizes]
    return [(torch.randn(len(y), 6, generator=g) + y[:, None], y) for y in labels]


def measured(run: ct.Run) -> list[dict[str, object]]:
    """All that a run has measured, without times."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in run.history]


def test_scores_are_the_logits_of_an_output(tmp_path: Path) -> None:
    """In training, measurement, prediction and personalization."""
    drawn = pairs(8, 5, 4)
    fed = ct.data.from_tensors(train=drawn, test=drawn, classes=3)
    alg = ct.algorithms.fedper(personal="layer.bias", epochs=2, batch_size=4, finetune_epochs=1, participation=1.0)
    forms = torch.clone, Output
    bare, wrapped = (
        ct.fit(linear(form), fed, alg, rounds=2, record=["sharpness"], progress=False, out=tmp_path / form.__name__)
        for form in forms
    )
    assert measured(bare) == measured(wrapped)
    for one, other in zip(bare.clients, wrapped.clients, strict=True):
        assert torch.equal(one.predict(fed.x), other.predict(fed.x))
    scores = bare.clients[0].module()(fed.x)
    assert torch.equal(wrapped.clients[0].module()(fed.x).logits, scores)
    one, other = (ct.export.personalize(tmp_path / f.__name__, fed, model=linear(f)) for f in forms)
    assert [site.trained for site in one] == [site.trained for site in other]


class Interrupted(BaseException):
    """As a key press raises."""


def test_a_run_of_several_inputs_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured in every way as the same run of one tensor, and refused on other data."""
    alg = ct.algorithms.fedper(epochs=1, batch_size=3, finetune_epochs=1, participation=1.0)
    chosen = {"validation": 0.2, "select": "best-validation-per-client", "holdout_clients": 1}
    asked = {"record": ["train-accuracy"], "metric": ["accuracy", "auroc"], "engine": "vectorized:2", **chosen}

    def fit(form: type[Attention], fed: Federation, resume: bool = False) -> ct.Run:
        out = tmp_path / form.__name__
        return ct.fit(module(form), fed, alg, rounds=3, out=out, resume=resume, progress=False, **asked)

    whole = fit(Packed, federation(Packed))

    def update(self: Any, row: Any) -> None:
        if row["round"] == 2:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("coterie.track.progress.Progress.update", update)
        with pytest.raises(Interrupted):
            fit(ByName, federation(ByName))
    parts = [({"input_ids": t, "attention_mask": m.bool()}, y) for t, m, y in drawn()]
    with pytest.raises(ct.UserError, match=r"fingerprints\.data"):
        fit(ByName, ct.data.from_tensors(train=parts, test=parts, classes=3), resume=True)
    resumed = fit(ByName, federation(ByName), resume=True)
    assert measured(resumed) == measured(whole)
    assert whole.config["sample_shape"] == [2, 6]
    assert resumed.config["sample_shape"] == {"input_ids": [6], "attention_mask": [6]}
    assert resumed.config["sample_type"] == {"input_ids": "int64", "attention_mask": "int64"}


def test_the_digest_tells_names_values_and_forms_apart() -> None:
    (tokens, mask, label), classes = drawn()[0], 3
    forms = [{"a": tokens, "b": mask}, {"b": tokens, "a": mask}, (tokens, mask), (mask, tokens)]
    forms += [{"a": tokens, "b": mask.flip(0)}, torch.stack([tokens, mask], 1)]
    federations = [ct.data.from_tensors([(x, label)], [(x, label)], classes) for x in (*forms, forms[0])]
    digests = [fed.fingerprint() for fed in federations]
    assert len(set(digests)) == len(forms)
    assert digests[0] == digests[-1]


class Pairs(Dataset[Any]):
    """Items whose samples are dictionaries, some of them longer."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Any:
        return {"input_ids": list(range(self.lengths[i])), "attention_mask": torch.ones(6)}, i % 3


def test_samples_come_as_lists_arrays_or_items() -> None:
    tokens, mask, label = drawn()[0]
    whole = ct.data.from_tensors([({"t": tokens, "m": mask}, label)], [({"t": tokens, "m": mask}, label)])
    lists = {"m": mask.tolist(), "t": tokens.numpy()}  # in another order
    again = ct.data.from_tensors([({"t": tokens, "m": mask}, label), (lists, label)], [(lists, label)] * 2)
    assert torch.equal(again.x["t"], torch.cat([whole.x["t"]] * 2))
    assert torch.equal(again.x["m"], torch.cat([whole.x["m"]] * 2))
    items = ct.data.from_tensors([Pairs([6] * 4)], [Pairs([6] * 2)])
    assert repr(items).endswith("test_samples=2, input_shape=input_ids (6,), attention_mask (6,), classes=3)")
    some = again.of_clients(np.array([1])).to("cpu")
    assert torch.equal(some.x["t"], tokens)
    assert torch.equal(some.sample(2)["m"], mask[:2])


def given(x: Any, y: Any = None, x2: Any = None, **options: Any) -> Federation:
    """Two clients, one of which has other samples."""
    label = drawn()[0][2] if y is None else y
    pairs = [(x, label), (x if x2 is None else x2, label)]
    return ct.data.from_tensors(train=pairs, test=pairs, **options)


T, M, Y = drawn()[0]
NAMED = {"input_ids": T, "attention_mask": M}
ONE_TENSOR = r"called with one tensor .*missing a required argument: .*\): give the samples that its forward takes"
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "sequences of unequal length": (
        lambda: given({"input_ids": [[1, 2], [3]], "attention_mask": M}),
        r"input_ids of the train samples of client 0 are no rows of numbers of one length, but of 1 to 2: pad them",
    ),
    "longer at another client": (
        lambda: given(NAMED, None, {**NAMED, "input_ids": T[:, :4]}),
        r"input_ids of train samples of client 1 are int64 of shape \(4,\) but .*\(6,\): .*as padding does for",
    ),
    "other names": (
        lambda: given(NAMED, None, {"ids": T, "attention_mask": M}),
        "have the inputs ids, attention_mask but those of client 0 have input_ids, attention_mask: give all the same",
    ),
    "another form": (lambda: given(NAMED, None, (T, M)), "have the inputs 0, 1 but .* input_ids, attention_mask"),
    "no inputs": (lambda: given({}), "are an empty dictionary: give one input or more"),
    "fewer rows in one": (lambda: given({**NAMED, "input_ids": T[:3]}), "input_ids of train of client 0 needs as many"),
    "infinity in one": (
        lambda: given({"a": T, "b": torch.full((7, 2), torch.inf)}),
        r"the train b of samples \(client 0\) contain NaN or infinity",
    ),
    "images of bytes among them": (
        lambda: given({"a": T, "b": torch.zeros(7, 3, 4, 4, dtype=torch.uint8)}),
        "b of samples are uint8, and several inputs are given as a model takes them: make them numbers",
    ),
    "a transform": (lambda: given(NAMED, transform=ct.data.Transform((0.5,), (0.5,))), "several inputs: leave it out"),
    "a built-in model": (
        lambda: ct.models.build("mlp", federation(ByName)),
        "model mlp takes one tensor, and a sample has the inputs input_ids, attention_mask: name a function",
    ),
    "arguments of other names": (
        lambda: ct.fit(module(InOrder), federation(ByName), ct.algorithms.local(), rounds=1, progress=False),
        r"the inputs input_ids, attention_mask \(missing a required argument: 'tokens'\)",
    ),
    "one tensor for a model of several": (
        lambda: ct.fit(module(ByName), federation(Packed), ct.algorithms.local(), rounds=1, progress=False),
        ONE_TENSOR,
    ),
    "several for a model of one": (
        lambda: ct.fit(nn.Linear(6, 3), federation(InOrder), ct.algorithms.local(), rounds=1, progress=False),
        r"the inputs 0, 1 \(too many positional arguments\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_sentence(case: str) -> None:
    make, sentence = BAD[case]
    with pytest.raises(ct.UserError, match=sentence) as refused:
        make()
    assert "\n" not in str(refused.value)
