"""What a method is written with: everything that a file of one's own needs is here, and stays here.

A method is a function from a problem to a program. Its signature says which settings it has. A command runs it by
name, ``coterie run mine:fedfoo``; in Python a call of the function makes it.

>>> from typing import Unpack
>>> @method()
... def fedfoo(p: Problem, t: Training, *, mu: Rate = 0.1, **options: Unpack[Options]) -> Program[Server]:
...     return federated(p, [Phase(p.parameters, t.amount, t.lr, proximal(mu))], t, p.names)
>>> fedfoo(mu=0.5).settings["mu"]
0.5

What is here:

* A method: ``method``, ``Algorithm``, ``Problem``, ``Program``; ``Model``, where it trains another module.
* Settings: ``Options`` and ``Training``, which all methods have; ``Rate``, ``Positive``, ``Fraction``, ``Count``,
  ``Epochs``, ``Range``, ``Participation``, ``Weighting``, ``SamForm``, ``Patterns`` and ``TopologyLike``, the types of
  settings; ``UserError``, to refuse one.
* Local work: ``Phase``, ``ParamGroup``, ``Amount``; ``LocalUpdate``, all phases of a round for a cohort.
* Corrections: ``sam``, ``proximal``, ``control_variate``, ``few_samples``, ``masked``, ``debiased``; ``Correction``,
  the base class of one's own, which makes one ``Grad`` from another: a function from a model and a ``Batch`` to a
  direction and its ``StepInfo``. It looks up what it needs in ``Aux``; a proximal term finds its model there under
  the name ``REFERENCE``.
* Families: ``federated`` around a ``Server``, ``decentralized`` between ``Peers``, ``push_sum`` with the state
  ``Pushed``; ``beside`` with the state ``Beside``, where clients have a model of their own beside the server's. It
  trains together with the server's as its ``second``, under ``second_names``; ``apart`` separates the two.
* Mixing: ``average``, and its halves ``sums`` and ``ratio``; ``gossip``, ``interpolate``; ``Topology``, ``topology``.
  Averages and gossip take a rule, that of the training. A program that follows it says so in a field of that name; with
  one that does not, the setting robust is refused.
* Wrappers: ``quantized`` messages, ``finetuned`` models, and ``around``, which makes such a wrapper.
* From scratch: ``Round`` and ``Trained``, which the functions of a program take and return; ``message_of`` a model,
  ``kept_state`` of optimizers, ``look_up`` for corrections; ``Traffic``, ``load``, ``over``, ``gossiped``,
  ``to_server`` and ``both_ways``, which count messages.
* Unequal clients: a ``Submodel`` is the form of the model that some clients train, and ``Assigned`` says which clients
  do; a problem has a list of these for every round.
* Optimizers: ``Optimizer``, the protocol of one's own, with its state in ``Slots``; ``Sgd`` and ``Adam``, which are two
  of them; ``OptimizerLike``, the type of a setting that names one.
* Tensors: ``Tensors``, ``Tree``; ``add``, ``sub``, ``mul``, ``norm``, ``dot``, ``split``, ``rows``, ``put``,
  ``replicate``, ``count``, ``floating``, ``zeros_like``.
"""

from . import topology
from .algorithms.base import Algorithm, Assigned, Problem, Program, Round, Submodel, Trained, around
from .algorithms.beside import Beside, apart, beside, second, second_names
from .algorithms.bind import finetuned, quantized
from .algorithms.kept import kept_state
from .algorithms.method import method
from .algorithms.options import (
    Count,
    Epochs,
    Fraction,
    OptimizerLike,
    Options,
    Participation,
    Positive,
    Range,
    Rate,
    SamForm,
    Training,
    Weighting,
)
from .algorithms.peers import Peers, decentralized
from .algorithms.pushsum import Pushed, push_sum
from .algorithms.server import Server, both_ways, federated
from .algorithms.traffic import Traffic, gossiped, load, over, to_server
from .algorithms.update import LocalUpdate, look_up, message_of
from .core.errors import UserError
from .core.tensors import (
    Tensors,
    Tree,
    add,
    count,
    dot,
    floating,
    mul,
    norm,
    put,
    replicate,
    rows,
    split,
    sub,
    zeros_like,
)
from .data.batches import Amount, Batch
from .engines.base import Grad, StepInfo
from .exchange.mixing import average, gossip, interpolate, ratio, sums
from .local.corrections import control_variate, debiased, few_samples, masked, proximal, sam
from .local.optimizers import Adam, Optimizer, Sgd, Slots
from .local.personal import Patterns
from .local.steps import REFERENCE, Aux, Correction, ParamGroup, Phase
from .models.model import Model
from .topology import Topology, TopologyLike

__all__ = [
    "REFERENCE",
    "Adam",
    "Algorithm",
    "Amount",
    "Assigned",
    "Aux",
    "Batch",
    "Beside",
    "Correction",
    "Count",
    "Epochs",
    "Fraction",
    "Grad",
    "LocalUpdate",
    "Model",
    "Optimizer",
    "OptimizerLike",
    "Options",
    "ParamGroup",
    "Participation",
    "Patterns",
    "Peers",
    "Phase",
    "Positive",
    "Problem",
    "Program",
    "Pushed",
    "Range",
    "Rate",
    "Round",
    "SamForm",
    "Server",
    "Sgd",
    "Slots",
    "StepInfo",
    "Submodel",
    "Tensors",
    "Topology",
    "TopologyLike",
    "Traffic",
    "Trained",
    "Training",
    "Tree",
    "UserError",
    "Weighting",
    "add",
    "apart",
    "around",
    "average",
    "beside",
    "both_ways",
    "control_variate",
    "count",
    "debiased",
    "decentralized",
    "dot",
    "federated",
    "few_samples",
    "finetuned",
    "floating",
    "gossip",
    "gossiped",
    "interpolate",
    "kept_state",
    "load",
    "look_up",
    "masked",
    "message_of",
    "method",
    "mul",
    "norm",
    "over",
    "proximal",
    "push_sum",
    "put",
    "quantized",
    "ratio",
    "replicate",
    "rows",
    "sam",
    "second",
    "second_names",
    "split",
    "sub",
    "sums",
    "to_server",
    "topology",
    "zeros_like",
]
