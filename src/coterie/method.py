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
  ``Range``, ``Participation``, ``Weighting`` and ``Patterns``, the types of settings; ``UserError``, to refuse one.
* Local work: ``Phase``, ``Group``, ``Amount``; ``LocalUpdate``, all phases of a round for a cohort.
* Corrections: ``sam``, ``proximal``, ``control_variate``, ``few_samples``, ``masked``, ``debiased``; ``Correction``,
  the class of one's own, which makes a ``Grad`` of another one: of a model and a ``Batch`` it gives a direction and
  what was ``Seen``, and looks things up in ``Aux``; ``REFERENCE``, the name under which a proximal term looks up its
  model.
* Families: ``federated`` around a ``Server``, ``decentralized`` between ``Peers``, ``push_sum`` of what is ``Pushed``;
  ``beside``, whose state is ``Beside``: clients with a model of their own beside the server's, which trains together
  with it as its ``second`` under ``second_names``, until they are taken ``apart``.
* Mixing: ``average``, and its halves ``sums`` and ``ratio``; ``gossip``, ``interpolate``; ``Topology``, ``topology``.
* Wrappers: ``quantized`` messages, ``finetuned`` models, and ``around``, which makes such a wrapper.
* From scratch: ``Round`` and ``Trained``, which the functions of a program take and give; ``message_of`` a model,
  ``persistent`` momentum, what corrections have ``look_up``; ``Traffic``, ``load``, ``over``, ``gossiped``,
  ``to_server`` and ``both_ways``, which count what is sent.
* Unequal clients: a ``View`` is the form of the model that some train, ``Assigned`` says who does, and a problem has
  such views for every round.
* Tensors: ``Tensors``, ``Tree``; ``add``, ``sub``, ``mul``, ``norm``, ``dot``, ``split``, ``rows``, ``put``,
  ``replicate``, ``count``, ``floating``, ``zeros_like``.
"""

from . import topology
from .algorithms.base import Algorithm, Assigned, Problem, Program, Round, Submodel, Trained, around
from .algorithms.beside import Beside, apart, beside, second, second_names
from .algorithms.finetuned import finetuned
from .algorithms.method import method
from .algorithms.options import Count, Fraction, Options, Participation, Positive, Range, Rate, Training, Weighting
from .algorithms.peers import Peers, decentralized
from .algorithms.pushsum import Pushed, push_sum
from .algorithms.quantized import quantized
from .algorithms.server import Server, both_ways, federated
from .algorithms.traffic import Traffic, gossiped, load, over, to_server
from .algorithms.update import LocalUpdate, look_up, message_of, persistent
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
from .local.personal import Patterns
from .local.steps import REFERENCE, Aux, Correction, ParamGroup, Phase
from .models.model import Model
from .topology import Topology

__all__ = [
    "REFERENCE",
    "Algorithm",
    "Amount",
    "Assigned",
    "Aux",
    "Batch",
    "Beside",
    "Correction",
    "Count",
    "Fraction",
    "Grad",
    "LocalUpdate",
    "Model",
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
    "Server",
    "StepInfo",
    "Submodel",
    "Tensors",
    "Topology",
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
    "load",
    "look_up",
    "masked",
    "message_of",
    "method",
    "mul",
    "norm",
    "over",
    "persistent",
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
