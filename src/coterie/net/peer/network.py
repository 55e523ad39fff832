"""The exchanges of a peer over its transport: who is sent to, who is waited for, and who went on without it."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Condition
from time import monotonic, sleep

from ...core.tensors import Tensors
from ..wire.message import Header, Outgoing
from ..wire.transport import Beat, Transport
from .deadline import Deadline
from .engine import Delivery
from .kinds import Copies, MessageKind, Portion, Transfers
from .mailbox import TURN, Arrived, Mailbox, WaitFor
from .outbox import Entry, Outbox

GONE = "leaving"  # the state of a member that says goodbye
IN_VAIN = 5  # rounds after which somebody is told that nothing of a member arrives


class Network:
    """One peer among the members, exchange after exchange."""

    def __init__(
        self,
        members: Sequence[str],
        client: int,
        transport: Transport,
        mailbox: Mailbox,
        outbox: Outbox,
        deadline: Deadline,
        *,
        on_event: Callable[..., None],
    ) -> None:
        self.members, self.me = members, members[client]
        self.transport, self.mailbox, self.outbox, self.deadline = transport, mailbox, outbox, deadline
        self.on_event = on_event
        self.round, self.step = 0, 0
        self.missed: set[str] = set()  # whom this round has waited for in vain
        self.heard: set[str] = set()  # whose messages the latest round has mixed in
        self._seen: set[str] = set()  # who was there at the beginning of any round
        self._in_vain: Counter[str] = Counter()  # rounds since a message of each member came in time
        self._entered = monotonic()
        self._pending: Counter[str] = Counter()  # messages that nobody has settled, by receiver
        self._settled = Condition()

    def enter(self, round: int) -> None:
        """Begin a round: its messages and those of the next one are taken from now on."""
        self.round, self.step, self.missed, self._entered = round, 0, set(), monotonic()
        self._seen |= set(self.beats())
        self.mailbox.enter(round)
        self.transport.drop(round - 1)

    def beats(self) -> dict[str, Beat]:
        """Return what the others say of themselves who are there and run the same federation."""
        return {k: b for k, b in self.transport.alive().items() if b.digest == self.mailbox.digest and b.state != GONE}

    @property
    def lost(self) -> set[str]:
        """Those who were there, and are not."""
        return self._seen - set(self.beats())

    @property
    def together(self) -> bool:
        """Whether this round went on with everybody who has ever come."""
        return not self.lost and self.missed.isdisjoint(self._seen)

    def keep_pace(self) -> None:
        """Let a round take as long as rounds do, while somebody is lost.

        Who is alone would be hundreds of rounds ahead when the others are there again, and have nobody to train with.
        """
        until = self._entered + self.deadline.pace
        while self.lost and (left := until - monotonic()) > 0:
            sleep(min(left, TURN))

    def let_others_come(self) -> None:
        """Wait while half of the others are more than a round behind and get on: they take no message from here yet."""
        last, until = -1, monotonic()
        while (rounds := self._rounds()) and (now := rounds[len(rounds) // 2]) < self.round - 1:
            if now > last:
                last, until = now, monotonic() + self.deadline.seconds
            if monotonic() > until:
                break
            sleep(TURN)

    def _rounds(self) -> list[int]:
        return sorted(b.round for b in self.beats().values())

    def alive(self) -> Collection[str]:
        """Return whom it makes sense to wait for: who is more than a round ahead does not send what is missing."""
        return {k for k, b in self.beats().items() if b.round <= self.round + 1} - self.missed

    def ahead(self, round: int, receivers: Collection[str]) -> int | None:
        """Return the round the others are in, if those who need this peer's message of ``round`` did not wait for it.

        At least half of them must say so, and the round is the middle one of what all say: a single member that claims
        to be far ahead moves nobody.
        """
        beats = self.beats()
        past = [beats[k].round > round for k in receivers if k in beats]
        if not past or 2 * sum(past) < len(past):
            return None
        middle = self.middle_round()
        return middle if middle > round else None

    def middle_round(self) -> int:
        """Return the round that more than half of the others who are there have reached; 0 without any."""
        rounds = self._rounds()
        return rounds[(len(rounds) - 1) // 2] if rounds else 0

    def copies(self, x: Tensors, to: Sequence[int], wanted: Sequence[int]) -> Mapping[int, Arrived]:
        """Send copies, and return what was heard in time."""
        self.mailbox.sent(self.step, x)
        message = Outgoing(self._header(Copies.name, self.round, self.step), x)
        for k in to:
            self._post(self.members[k], message)
        arrived = self._due(self.mailbox.copies, wanted, self.deadline.seconds)
        return {self.members.index(sender): tensors for sender, tensors in arrived}

    def transfers(self, x: Tensors, shares: Mapping[int, Portion], wanted: Sequence[int]) -> Delivery:
        """Hand over shares to whoever is there, and return them with what came until the deadline."""
        until = monotonic() + self.deadline.seconds
        self.mailbox.sent(self.step, x)
        entry = self.outbox.entries.get((self.round, self.step))
        if entry is None:
            there = self._acknowledged({self.members[k] for k in shares}, until)
            named = {self.members[k]: share for k, share in shares.items() if self.members[k] in there}
            entry = self.outbox.commit(self.round, self.step, x, named)
            self.mailbox.transfers.moved(-sum(share.mass for share in named.values()))
        self.resend(entry)
        arrived = [tensors for _, tensors in self._due(self.mailbox.transfers, wanted, until - monotonic())]
        return Delivery(entry.tensors, {self.members.index(to): share for to, share in entry.shares.items()}, arrived)

    def _due(self, kind: MessageKind, wanted: Sequence[int], seconds: float) -> list[tuple[str, Arrived]]:
        """End an exchange: wait for those who are wanted, and return what there is to use, by sender."""
        names, patience = {self.members[j] for j in wanted}, WaitFor(seconds, self.alive, self.deadline.longest)
        heard, arrived = self.mailbox.due(kind, names, (self.round, self.step), patience)
        self._note_missing(names, names - heard)
        self.step += 1
        return arrived

    def _acknowledged(self, names: set[str], until: float) -> set[str]:
        """Return who of them is there and has all that was sent before, for which this waits.

        Whatever is on its way is missing here, and a link that is cut is noticed late. With one share on its way to
        each member a peer keeps enough mass; with one more in every round, its steps would soon be divided by nothing.
        """
        with self._settled:
            while (names & self.outbox.owed & set(self.beats()) - self.missed) and monotonic() < until:
                self._settled.wait(TURN)
        near = {k for k, b in self.beats().items() if b.round <= self.round + 1}  # who is far ahead waits for others
        return names & near - self.outbox.owed

    def resend(self, entry: Entry) -> None:
        """Send the shares of an entry that nobody has acknowledged: receivers know which they have."""
        header = self._header(Transfers.name, entry.round, entry.step)
        for to in sorted(entry.unsettled):
            message = Outgoing(header, entry.message(to), lasts=True)
            self._post(to, message, partial(self.outbox.settle, entry.round, entry.step))

    def _header(self, kind: str, round: int, step: int) -> Header:
        return Header(self.mailbox.federation, self.mailbox.digest, kind, round, step, self.me)

    def _note_missing(self, wanted: Collection[str], missing: set[str]) -> None:
        """Note who was not heard; warn once of a member that answers and of which nothing comes in time."""
        heard = set(wanted) - missing
        self.heard = heard | (self.heard if self.step else set())
        for name in heard:
            self._in_vain.pop(name, None)
        for name in missing & set(self.beats()) - self.missed:
            self._in_vain[name] += 1
            if self._in_vain[name] == IN_VAIN:
                fix = "its link, or its training, may need a longer deadline (--deadline)"
                self.on_event("warning", text=f"{name} answers, but {IN_VAIN} rounds have waited for it in vain: {fix}")
        self.missed |= missing
        if missing:
            self.on_event("missing", round=self.round + 1, step=self.step, members=sorted(missing))

    def _post(self, to: str, message: Outgoing, taken: Callable[[str], None] = lambda to: None) -> None:
        """Send a message; ``taken(to)`` is called when its receiver has it."""
        with self._settled:
            self._pending[to] += 1

        def done(to: str, outcome: str) -> None:
            if outcome == "accepted":
                taken(to)
            with self._settled:
                self._pending[to] -= 1
                self._settled.notify_all()

        self.transport.post(to, message, done)

    def linger(self, seconds: float) -> None:
        """Wait until all that was sent is acknowledged by those who are there."""
        until = monotonic() + seconds
        with self._settled:
            while any(self._pending[k] for k in self.beats()) and monotonic() < until:
                self._settled.wait(TURN)
