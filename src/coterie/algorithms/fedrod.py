"""Fed-RoD: one body, a generic head that is shared and balanced, a personal head beside it."""

import copy
from typing import Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import RequestError
from ..local import Group, Phase
from ..problem import Model, cross_entropy
from ..split import head_layer
from ..tensors import Tensors, zeros_like
from .base import Algorithm, Problem, Program, Round
from .families import Server, federated
from .options import Options, Training, check_range
from .server import check_server

HIDDEN = 32  # of the network that makes personal heads
COUNTS = "counts"


class TwoHeads(nn.Module):
    """In place of a model's last layer: its generic head, and a personal one that learns what is left.

    In training the two answers lie side by side, [B, 2, C]; in evaluation they are added, [B, C].
    """

    counts: Tensor

    def __init__(self, generic: nn.Linear, gamma: float, hyper: bool) -> None:
        super().__init__()
        classes, features = generic.out_features, generic.in_features
        self.gamma, self.generic = gamma, generic
        last = nn.Linear(HIDDEN, classes * (features + 1)) if hyper else nn.Linear(features, classes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.personal = nn.Sequential(nn.Linear(classes, HIDDEN), nn.ReLU(), last) if hyper else last
        self.register_buffer(COUNTS, torch.ones(classes))  # how many samples of each class the client has
        self.to(generic.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Both answers, or their sum."""
        generic, own = self.generic(features), self.own(features.detach())
        if not self.training:
            return cast(Tensor, generic + own)
        return torch.stack([self.balanced(generic), generic.detach() + own], 1)

    def own(self, features: Tensor) -> Tensor:
        """The personal answer; its head may be made from the client's class shares."""
        if isinstance(self.personal, nn.Linear):
            return cast(Tensor, self.personal(features))
        made = self.personal(self.counts / self.counts.sum())
        weight, bias = made.view(self.generic.out_features, -1).split([self.generic.in_features, 1], 1)
        return F.linear(features, weight, bias[:, 0])

    def balanced(self, z: Tensor) -> Tensor:
        """z + gamma log n_c: what the softmax of a client with these class counts would see."""
        if self.gamma == 0:
            return z
        prior = self.gamma * self.counts.clamp(min=1).log()
        return (z + prior).masked_fill(self.counts == 0, -torch.inf)


def both_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """The generic head's loss and the personal one's; no gradient of either reaches the other's part.

    In evaluation there is one answer, and its loss.
    """
    if outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    return cross_entropy(outputs[:, 0], targets) + cross_entropy(outputs[:, 1], targets)


def fedrod(
    *,
    gamma: float = 1.0,
    hyper: bool = False,
    personal_lr: float | None = None,
    participation: float | int = 0.1,
    weighting: str = "size",
    **options: Unpack[Options],
) -> Algorithm:
    """Fed-RoD: a generic predictor trained with a balanced softmax, and personal heads on its detached features.

    L_g = CE(z + gamma log n_c),  z = h(f);   L_p = CE(stop(z) + q_i(stop(f)))   in one phase for i in S
    (body, h) step on L_g, q_i on L_p;   (body, h) <- sum_S w_i (body_i, h_i);   personal answer: z + q_i(f)

    hyper: q_i = H(the client's class shares), with H shared and averaged; personal_lr: of q_i (or H), None: lr.

    >>> fedrod().settings["gamma"]
    1.0

    Reference: Chen and Chao, "On Bridging Generic and Personalized Federated Learning", 2022.
    Differs from the paper in: q_i starts at zero, and no hypernetwork unless asked. There is no released code, and
    two public versions disagree; taken is the one with detached features whose answers are added.
    """
    check_server(participation, weighting, 1.0)
    check_range("gamma", gamma, 0, float("inf"))
    check_range("personal_lr", personal_lr, 0, float("inf"))
    t = Training().given(options)

    def bind(p: Problem) -> Program[Server]:
        layer = next(name for name, m in p.module.named_modules() if isinstance(m, TwoHeads))
        at = f"{layer}." if layer else ""
        own = frozenset(k for k in p.names if k.startswith(f"{at}personal."))
        kept = {at + COUNTS} if hyper else own | {at + COUNTS}
        heads = Group(own, t.lr if personal_lr is None else personal_lr, apart=True)
        phase = Phase(p.parameters, t.amount, t.lr, group=heads)
        program = federated(p, [phase], t, p.names - kept, participation, weighting)

        def prepare(s: Server, r: Round) -> Server:
            return s._replace(v=s.v | {at + COUNTS: class_counts(r, s.v[at + COUNTS])})

        def consensus(s: Server) -> Tensors:
            """The generic model: what is personal at zero."""
            return s.u | zeros_like({k: v[0] for k, v in s.v.items()})

        return program._replace(prepare=prepare, consensus=None if hyper else consensus)

    own = {"gamma": gamma, "hyper": hyper, "personal_lr": personal_lr}
    server = {"participation": participation, "weighting": weighting}
    return Algorithm(
        "fedrod", {**own, **server, **t._asdict()}, bind, lambda model: with_two_heads(model, gamma, hyper)
    )


def with_two_heads(model: Model, gamma: float, hyper: bool) -> Model:
    """The model with its last linear layer replaced, and both losses."""
    if model.loss is not cross_entropy:
        raise RequestError("fedrod balances the softmax of the cross-entropy: leave loss out, or take fedper")
    module = copy.deepcopy(model.module)
    name = head_layer(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the network that makes heads is the same for everybody
        heads = TwoHeads(cast(nn.Linear, module.get_submodule(name)), gamma, hyper)
    if not name:
        return model.like(heads, both_losses)
    outside, _, last = name.rpartition(".")
    setattr(module.get_submodule(outside), last, heads)
    return model.like(module, both_losses)


def class_counts(r: Round, like: Tensor) -> Tensor:
    """[m, C] how many training samples of each class every member of the cohort has."""
    y = r.samples.y
    if y.is_floating_point() or y.dim() != 1:
        raise RequestError("fedrod counts classes: give one whole-numbered label a sample, or take fedper")
    owned = (r.samples.owned[client] for client in r.cohort)
    return torch.stack([y[own].bincount(minlength=like.shape[1]) for own in owned]).to(like)
