"""Fed-RoD: one body, a generic head that is shared and balanced, a personal head beside it."""

import copy
from typing import Unpack, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from ..core.errors import UserError
from ..core.rng import torch_draws
from ..core.tensors import Tensors, put, rows, zeros_like
from ..local.personal import head_layer
from ..local.steps import ParamGroup, Phase
from ..models.model import Model, cross_entropy
from .method import Options, Participation, Problem, Program, Rate, Round, Trained, Training, Weighting, method
from .server import Server, federated

HIDDEN = 32  # of the network that makes personal heads
COUNTS, BEGUN = "counts", "begun"


class TwoHeads(nn.Module):
    """A replacement of a model's last layer: its generic head, and a personal one that learns the residual.

    In training all answers stand side by side, [B, heads, C]; in evaluation generic and personal one are added, [B, C].
    """

    counts: Tensor
    personal: nn.Linear | None  # the client's own head
    network: nn.Sequential | None  # makes one from class shares

    def __init__(self, generic: nn.Linear, gamma: float, hyper: bool = False, keep_head: bool = True) -> None:
        super().__init__()
        classes, features = generic.out_features, generic.in_features
        self.gamma, self.generic = gamma, generic
        self.personal = _zero(nn.Linear(features, classes)) if keep_head else None
        self.network = _network(classes, features) if hyper else None
        self.register_buffer(COUNTS, torch.ones(classes))  # how many samples of each class the client has
        if self.network is not None and self.personal is not None:
            self.register_buffer(BEGUN, torch.zeros(()))  # 1 once the client has a head of its own
        self.to(generic.weight)

    def forward(self, features: Tensor) -> Tensor:
        """[B, features] -> [B, heads, C] in training, [B, C] in evaluation."""
        generic = self.generic(features)
        heads = [head for head in (self.personal, self.network and self.generated) if head is not None]
        if not self.training:
            return cast(Tensor, generic + heads[0](features))
        own = [generic.detach() + head(features.detach()) for head in heads]
        return torch.stack([self.balanced(generic), *own], 1)

    def generated(self, features: Tensor) -> Tensor:
        """Return the answer of the head that the network makes for the client; 0 for a client without samples."""
        assert self.network is not None
        weight, bias = self.weight_and_bias(self.network(class_shares(self.counts)))
        return F.linear(features, weight, bias) * (self.counts.sum() > 0)

    def weight_and_bias(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output of the network as weight and bias of a head."""
        both = output.view(self.generic.out_features, -1)
        return both[:, :-1], both[:, -1]

    def balanced(self, z: Tensor) -> Tensor:
        """Return z + gamma log n_c: the logits of a softmax that knows the client's class counts."""
        if self.gamma == 0:
            return z
        prior = self.gamma * self.counts.clamp(min=1).log()
        return (z + prior).masked_fill(self.counts == 0, -torch.inf)


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _network(classes: int, features: int) -> nn.Sequential:
    """Return the network from class shares to a head, which is zero at first."""
    return nn.Sequential(nn.Linear(classes, HIDDEN), nn.ReLU(), _zero(nn.Linear(HIDDEN, classes * (features + 1))))


def class_shares(counts: Tensor) -> Tensor:
    """Return the shares of the classes among a client's samples; all are 0 where it has none."""
    return counts / counts.sum().clamp(min=1)


def all_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of all heads' losses; no gradient of one reaches another's part.

    In evaluation there is one answer, and its loss.
    """
    if outputs.dim() == 2:
        return cross_entropy(outputs, targets)
    return torch.stack([cross_entropy(answer, targets) for answer in outputs.unbind(1)]).sum()


def _check(hyper: bool, keep_head: bool) -> None:
    if hyper is False and keep_head is False:
        raise UserError("keep_head=false is for heads that a network makes: add hyper=true, or leave it out")


def with_two_heads(model: Model, gamma: float, hyper: bool, keep_head: bool) -> Model:
    """Return the model with its last linear layer replaced, and all losses."""
    if model.loss is not cross_entropy:
        raise UserError("fedrod balances the softmax of the cross-entropy: leave loss out, or take fedper")
    module = copy.deepcopy(model.module)
    name = head_layer(module)
    with torch_draws(0):  # the network that makes heads is the same for everybody
        heads = TwoHeads(cast(nn.Linear, module.get_submodule(name)), gamma, hyper, keep_head)
    if not name:
        return model.like(heads, all_losses)
    outside, _, last = name.rpartition(".")
    setattr(module.get_submodule(outside), last, heads)
    return model.like(module, all_losses)


@method(check=_check, adapt=with_two_heads)
def fedrod(
    p: Problem,
    t: Training,
    *,
    gamma: Rate = 1.0,
    hyper: bool = False,
    keep_head: bool = True,
    personal_lr: Rate | None = None,
    participation: Participation = 0.1,
    weighting: Weighting = "size",
    **options: Unpack[Options],
) -> Program[Server]:
    """Fed-RoD: a generic predictor trained with a balanced softmax, and personal heads on its detached features.

    L_g = CE(z + gamma log n_c),  z = h(f);   L_p = CE(stop(z) + q_i(stop(f)))   in one phase for i in S
    (body, h) step on L_g, q_i on L_p;   (body, h) <- sum_S w_i (body_i, h_i);   personal answer: z + q_i(f)

    A network H, shared and averaged, steps on L_p with the head H(the client's class shares) in place of q_i, where it
    is asked for. That head is what q_i begins with when the client first takes part, and what it has until then.

    Args:
        gamma: How strongly the softmax is balanced by class counts.
        hyper: Whether there is such a network.
        keep_head: Whether q_i goes on from the network's head. Otherwise it is the network's in every round, and
            nothing but the class counts stays with the client.
        personal_lr: The learning rate of q_i and H; none: lr.

    >>> fedrod().settings["gamma"]
    1.0

    Reference: Chen and Chao, "On Bridging Generic and Personalized Federated Learning", 2022.
    Differs from the paper in: q_i starts at zero, and no hypernetwork unless asked; the paper's own form with one is
    keep_head=False. That q_i goes on from H's head is how DFedAlt's paper can be read, which says that the network
    connects both models. There is no released code, and two public versions disagree; taken is the one with detached
    features whose answers are added. Both parts step in one phase, on disjoint losses, where DFedAlt's paper names
    the generic model first; q_i and H are clipped together.
    """
    layer = next(name for name, m in p.module.named_modules() if isinstance(m, TwoHeads))
    at = f"{layer}." if layer else ""
    heads = frozenset(k for k in p.parameters if k.startswith((f"{at}personal.", f"{at}network.")))
    private = frozenset(k for k in p.names if k.startswith((f"{at}personal.", at + COUNTS, at + BEGUN)))
    group = ParamGroup(heads, t.lr if personal_lr is None else personal_lr, clipped_alone=True)
    phase = Phase(p.parameters, t.amount, t.lr, group=group)
    program = federated(p, [phase], t, p.names - private, participation, weighting)

    def prepare(s: Server, r: Round) -> Server:
        return s._replace(v=s.v | {at + COUNTS: class_counts(r, s.v[at + COUNTS])})

    def consensus(s: Server) -> Tensors:
        """Return the generic model: the personal part is zero."""
        return s.u | zeros_like({k: v[0] for k, v in s.v.items()})

    counted = program._replace(prepare=prepare, consensus=consensus)
    return with_first_heads(counted, p.module.get_submodule(layer), at) if hyper and keep_head else counted


def with_first_heads(program: Program[Server], heads: nn.Module, at: str) -> Program[Server]:
    """Let a client that has no head of its own yet begin with the one that the network makes for it."""
    assert isinstance(heads, TwoHeads)
    assert heads.network is not None
    network = heads.network

    def completed(u: Tensors, v: Tensors) -> Tensors:
        weights = {k: u[f"{at}network.{k}"] for k, _ in network.named_parameters()}

        def one(own: Tensors) -> Tensors:
            head = heads.weight_and_bias(functional_call(network, weights, (class_shares(own[at + COUNTS]),)))
            names, begun = (f"{at}personal.weight", f"{at}personal.bias"), own[at + BEGUN] > 0
            first = {k: torch.where(begun, own[k], value) for k, value in zip(names, head, strict=True)}
            return own | first | {at + BEGUN: torch.ones_like(own[at + BEGUN])}

        every: Tensors = vmap(one)(v)
        return every

    def train(s: Server, r: Round) -> Trained:
        return program.train(s._replace(v=put(s.v, r.members, completed(s.u, rows(s.v, r.members)))), r)

    def models(s: Server) -> Tensors:
        return program.models(s._replace(v=completed(s.u, s.v)))

    return program._replace(train=train, models=models)


def class_counts(r: Round, like: Tensor) -> Tensor:
    """Return [m, C] how many training samples of each class every member of the cohort has."""
    y = r.samples.y
    if y.is_floating_point() or y.dim() != 1:
        raise UserError("fedrod counts classes: give one integer label per sample, or take fedper")
    owned = (r.samples.owned[client] for client in r.cohort)
    return torch.stack([y[own].bincount(minlength=like.shape[1]) for own in owned]).to(like)
