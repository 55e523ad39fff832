"""What the commands assume where nothing is said, for every method on every data set."""

import pytest

from coterie.algorithms import BUILDERS, Algorithm
from coterie.algorithms.method import Facts, facts
from coterie.cli.common.options import RunOptions
from coterie.cli.common.typed_plan import typed_plan
from coterie.core.errors import UserError
from coterie.models.model import Model, cross_entropy
from coterie.study.presets import PRESETS
from toys import net

PAPERS = ("mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet")  # data sets the papers run on
LMT = ("fedlmt", "pfedlmt", "feddropout", "heterofl", "fedrolex", "fedhm", "fedhmv2", "flanc", "depthfl", "progfed")
SAM = ("fedsam", "dfedsam", "dfedsam-mgs")


NAMED = list(PRESETS)


def chosen(data: str, method: str) -> Algorithm:
    """A file is read before anything is chosen, unless a partition is given."""
    return typed_plan([method], RunOptions(data=data, partition="iid")).algorithms[method]


@pytest.mark.parametrize("data", NAMED)
def test_both_parts_of_fedavg_p_have_one_step_size(data: str) -> None:
    """gamma_u eta_u = gamma_v eta_v, as FedAvg-P's and Scaffold-P's analysis assumes."""
    for method in ("fedavg-p", "scaffold-p"):
        s = chosen(data, method).settings
        assert s["lr"] * s["outer_lr"] == pytest.approx(s["personal_lr"] * s["personal_outer_lr"]), method


@pytest.mark.parametrize("data", NAMED)
def test_every_method_can_be_built_and_sam_is_not_clipped(data: str) -> None:
    for method in BUILDERS:
        settings = chosen(data, method).settings
        assert method not in SAM or settings["clip"] is None, method


@pytest.mark.parametrize("data", PAPERS)
def test_batches_are_those_of_the_papers(data: str) -> None:
    for method in BUILDERS:
        assert chosen(data, method).settings["batch_size"] == (64 if method in LMT else 128), method


@pytest.mark.parametrize("method", BUILDERS)
def test_methods_that_need_stages_say_so(method: str) -> None:
    refused = False
    try:
        BUILDERS[method]().adapt(Model(net("mlp"), cross_entropy))
    except UserError as error:
        refused = "stages" in str(error)
    assert facts(BUILDERS[method]).staged is refused


def test_a_text_is_small_data_too() -> None:
    """What a method asks for with small data holds for texts, unless it asks for something else there."""
    assert chosen("digits", "fedlmt").settings["clip"] == 10.0
    assert chosen("text", "fedlmt").settings["clip"] is None
    assert chosen("text", "osgp").settings["topology"] == "random-push:5"


def test_a_kind_of_set_up_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="papers, small, text"):
        Facts({"tiny": {"epochs": 1}})  # type: ignore[dict-item]


def test_tables_have_the_settings_of_other_files() -> None:
    for name in ("csv", "parquet", "huggingface"):
        assert PRESETS[name]._replace(partition=PRESETS["npz"].partition) == PRESETS["npz"], name
