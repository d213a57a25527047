"""DeviceShare gives pods the devices that they request, from Device objects and annotations of placed pods.

PreFilter   parse the request; pods that request no device are skipped
Filter      counting cards decides most nodes; where it matters which cards, a trial allocation runs
Reserve     choose the cards for good and assume them in the cache
PreBind     annotate the pod with its cards
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import reduce
from typing import Protocol, runtime_checkable

import numpy as np

from koord.api.config.scheduler.device_share import DeviceShareArgs
from koord.api.custom import DEVICES
from koord.api.protocol import A_RESERVATION_ALLOCATED
from koord.policy.device.allocator import Options
from koord.policy.device.holding import NOTHING, Holdings, plus
from koord.policy.device.numa_hint import designated_hints, device_hints
from koord.policy.device.refusal import Refusal
from koord.policy.device.score import scorer_of
from koord.policy.topology.hint import Hint, Hints
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Reject, Skip
from koord.scheduler.framework.work import Mark, Work
from koord.scheduler.plugins.device_share.asking import MEMO, Asking, Askings, rejection
from koord.scheduler.plugins.device_share.book import Book, Promise
from koord.scheduler.plugins.device_share.cards import Fleet
from koord.scheduler.plugins.device_share.grade import Grade
from koord.scheduler.plugins.device_share.judge import Judge
from koord.scheduler.plugins.device_share.marking import Vendors, given, mark_of, resized
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.plugins.device_share.slices import Slices
from koord.scheduler.plugins.device_share.trial import RESTRICTED, Trial
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, RowList, Rows
from koord.values.bitmask import BitMask


@runtime_checkable
class ChoosesCards(Protocol):
    """Another plugin of the profile that prefers the card from which a GPU share is taken."""

    def best_card(self, pod: PodInfo, site: Site, node: NodeInfo) -> int | None:
        """Return the minor of a GPU; None leaves the choice to the scores of cards."""


class Kept:
    """The state of one class of pods in a cycle; `nodes` are the devices of nodes as changed by a dry run."""

    __slots__ = ("asking", "sites", "theirs")

    def __init__(self, asking: Asking, sites: dict[str, Site] | None = None) -> None:
        self.asking = asking
        self.sites: dict[str, Site] = {} if sites is None else sites
        self.theirs: dict[str, Holdings] = {}  # by node: of running pods that a reservation would take over there

    def copy(self) -> Kept:
        other = Kept(self.asking, dict(self.sites))
        other.theirs = dict(self.theirs)
        return other


class DeviceShare(Plugin):
    name = MEMO
    scope = ROW  # the cache marks the rows whose devices changed
    normaliser = Normaliser()
    scores_as_it_filters = True
    reserves_as_it_filters = True
    wakes_on = (
        Event("Device", ADD),
        Event("Device", UPDATE),
        Event("Pod", DELETE),
        Event("Node", ADD),
        Event("Node", UPDATE, "labels"),
    )

    def __init__(self, args: DeviceShareArgs, handle: Handle, *, adapts: bool = False, resizes: bool = False) -> None:
        """Take defaulted arguments. `adapts`: also write what third-party device plugins read. `resizes`: reservations
        hold what their devices come to, whatever they requested.
        """
        if args.scoring_strategy is None or args.gpu_shared_resource_templates_config is None:
            raise ValueError("scoring strategy or template config not specified")
        self._state = handle.state
        scorer = scorer_of(args.scoring_strategy)
        self._aligns = not args.disable_device_numa_topology_alignment
        unsupported = frozenset((one.vendor, one.model) for one in args.gpu_share_unsupported_models)
        self._askings = Askings()
        self._slices = Slices(args.gpu_shared_resource_templates_config, handle, self._askings.cut_by)
        self._resizes = resizes
        self._vendors = Vendors(handle) if adapts else None
        self.book = handle.state.derived(Book)
        handle.lister(DEVICES).on_change(self.book.device_changed)
        fleet = Fleet(handle.state.table, self.book, scorer)
        self._judge = Judge(handle.state.table, fleet, unsupported)
        self._grade = Grade(fleet, scorer)
        self._cards: ChoosesCards | None = None
        self._final = Options(scorer=scorer, final=True)

    def meet(self, plugins: Sequence[Plugin]) -> None:
        self._cards = next((plugin for plugin in plugins if isinstance(plugin, ChoosesCards)), None)

    def signature(self, pod: PodInfo) -> Hashable:
        if pod.shape.memo.get(MEMO) == ():  # it is known to ask for none
            return None
        asking = self._askings.of(pod)
        return asking.number if isinstance(asking, Asking) else asking

    # Waking ------------------------------------------------------------------------------------------------------

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        """Return whether the devices of the node that the event is about would fit the pod now."""
        asking = self._askings.of(pod)
        if not isinstance(asking, Asking):
            return False
        kind, old, new = happened.event.kind, happened.old, happened.new
        if kind == "Pod":
            if self._askings.of(old) is None:
                return False
            if A_RESERVATION_ALLOCATED in old.annotations:  # a reservation that it may use has more left
                return True
            name = old.node_name or old.nominated_node
        else:
            name = new.metadata.name
        node = self._state.node(name) if name else None
        if node is None:
            return False
        site, facts = self.book.of(node), self._judge.facts(node)
        if self._judge.unfit(asking, facts) is not None:
            return False
        return site is None or bool(site.tenants) or self._judge.verdict(asking, site, facts) is None

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | None:
        asking = self._askings.of(pod)
        if asking is None:
            return SKIP
        if isinstance(asking, Reject):
            return asking
        cycle.keep(self.name, Kept(asking))
        return None

    def _kept(self, cycle: Cycle, pod: PodInfo) -> Kept | Reject | None:
        """Return the cycle state, and make it where PreFilter is not enabled."""
        known = cycle.kept.get(self.name)
        if isinstance(known, Kept):
            return known
        asking = self._askings.of(pod)
        if not isinstance(asking, Asking):
            return asking
        kept = Kept(asking)
        cycle.keep(self.name, kept)
        return kept

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        """Add a pod in a dry run with the devices that it holds, or those that it would be given if it is only
        nominated.
        """
        kept = self._kept(cycle, pod)
        site = self._site(kept, node) if isinstance(kept, Kept) else None
        if site is None or not isinstance(kept, Kept):
            return
        live = self.book.of(node)
        held = live.held(other.uid) if live is not None else None
        inside = live.tenants.get(other.uid, "") if live is not None else ""
        if held is None:
            asking = self._askings.of(other)
            if not isinstance(asking, Asking):
                return
            found = Trial(site=site, asking=asking, facts=self._judge.facts(node)).allocation()
            if isinstance(found, Refusal):
                return
            held = found.holdings
        kept.sites[node.name] = site.taken(other.uid, held, inside)

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        kept = self._kept(cycle, pod)
        site = self._site(kept, node) if isinstance(kept, Kept) else None
        held = site.held(other.uid) if site is not None else None
        if isinstance(kept, Kept) and site is not None and held is not None:
            if pod.reserve and cycle.takes_over(other, node.name):
                kept.theirs[node.name] = plus(kept.theirs.get(node.name, NOTHING), held)
            kept.sites[node.name] = site.freed(other.uid)

    def _site(self, kept: Kept, node: NodeInfo) -> Site | None:
        return kept.sites.get(node.name) or self.book.of(node)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        kept = self._kept(cycle, pod)
        if not isinstance(kept, Kept):
            return kept
        asking, facts = kept.asking, self._judge.facts(node)
        unfit = self._judge.unfit(asking, facts)
        if unfit is not None:
            return unfit
        site = self._site(kept, node)
        if site is None:  # no Device object: the node's own device plugin allocates
            return None
        theirs, live = kept.theirs.get(node.name), self.book.of(node)
        if theirs and live is not None:
            covered = Trial(site=live, asking=asking, facts=facts, taken_over=theirs).placed()
            return rejection(covered) if isinstance(covered, Refusal) else None
        reserved = cycle.reserved.get(node.name, ())
        if not reserved:
            return self._judge.verdict(asking, site, facts)
        found = Trial(site=site, asking=asking, facts=facts, reserved=reserved, required=asking.required).placed()
        return rejection(found) if isinstance(found, Refusal) else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        kept = self._kept(cycle, pod)
        size = len(table.alive[rows])
        if not isinstance(kept, Kept):
            return np.full(size, 0 if kept is None else 1, np.int32)
        numbers = np.arange(table.size)[rows]
        codes = self._judge.codes(kept.asking, rows, numbers)
        for place, node in self._seen_otherwise(cycle, kept, table, numbers):
            codes[place] = kept.asking.code(self.filter(cycle, pod, node))
        return codes

    def _seen_otherwise(
        self, cycle: Cycle, kept: Kept, table: NodeTable, rows: RowList
    ) -> Iterator[tuple[int, NodeInfo]]:
        """Yield the nodes that columns do not describe, with their positions among the rows.

        These have reservations for such pods, or are changed by a dry run.
        """
        if not cycle.reserved and not kept.sites:
            return
        places = {int(row): place for place, row in enumerate(rows)}
        for name in {*cycle.reserved, *kept.sites}:
            node = table.index.get(name)
            if node is not None and node.node is not None and node.row in places:
                yield places[node.row], node

    def near_miss(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> tuple[float, str] | None:
        trial = self._trial(cycle, pod, node)
        if not isinstance(trial, Trial) or trial.reserved:
            return None
        nearest = trial.site.once(("near miss", trial.asking.number, trial.facts), trial.nearest)
        return None if nearest is None else (nearest.missing, nearest.sentence)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        kept = self._kept(cycle, pod)
        assert kept is not None
        return kept if isinstance(kept, Reject) else kept.asking.word(code)

    # Score -------------------------------------------------------------------------------------------------------

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        kept = self._kept(cycle, pod)
        if not isinstance(kept, Kept):
            return 0
        site = self._site(kept, node)
        if site is None:
            return 0
        if node.name not in cycle.reserved:
            return self._grade.of(kept.asking, site)
        trial = self._trial(cycle, pod, node)
        assert isinstance(trial, Trial)
        return self._grade.with_reusable(kept.asking, site, trial.reusable())

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        kept = self._kept(cycle, pod)
        size = len(table.alive[rows])
        if not isinstance(kept, Kept):
            return np.zeros(size, np.int64)
        numbers = np.arange(table.size)[rows]
        scores = self._grade.column(kept.asking, rows, numbers, self._judge.told())
        for place, node in self._seen_otherwise(cycle, kept, table, numbers):
            scores[place] = self.score(cycle, pod, node)
        return scores

    # After the choice --------------------------------------------------------------------------------------------

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        asking = self._askings.of(pod)
        site = self.book.of(node) if asking is not None else None
        if site is None or asking is None:
            return None
        if isinstance(asking, Reject):
            return asking
        nominated = cycle.nominated.get(pod.uid)
        guests = cycle.taken_over.get(pod.uid, ())
        trial = Trial(
            site=site,
            asking=asking,
            facts=self._judge.facts(node),
            reserved=() if nominated is None else (nominated,),
            required=nominated is not None and (asking.required or nominated.policy == RESTRICTED),
            taken_over=reduce(plus, (site.held(guest) or NOTHING for guest in guests), NOTHING),
            options=self._final,
        )
        zones = cycle.zones.get(pod.uid) if self._aligns else None
        free = self._cards is not None and nominated is None and asking.promised is None
        card = self._cards.best_card(pod, site, node) if self._cards is not None and free else None
        found = trial.allocation(zones, card)
        if isinstance(found, Refusal) and card is not None:
            found = trial.allocation(zones)
        if isinstance(found, Refusal):
            return rejection(found)
        self.book.promise(pod.uid, Promise(node.name, found, "" if nominated is None else nominated.uid, guests))
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        self.book.withdraw(pod.uid)

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | Reject | Fault | None:
        promise = self.book.promises.get(pod.uid)
        if promise is None:
            if self._askings.of(pod) is not None and node_name not in self.book.sites:
                self.book.bound_blindly(pod, node_name)
            return None
        site, node = self.book.sites.get(node_name), self._state.node(node_name)
        allocations = given(promise.allocation, None if site is None else site.inventory, node_name)
        if isinstance(allocations, Fault):
            return allocations
        if pod.reserve and self._resizes:
            return Mark({**mark_of(allocations).annotations, **resized(promise.allocation)})
        if self._vendors is None or site is None or node is None:
            return mark_of(allocations)
        return self._vendors.work(allocations, site.inventory, pod, node)

    # Among plugins -----------------------------------------------------------------------------------------------

    def numa_hints(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Hints | Reject | None:
        trial = self._trial(cycle, pod, node) if self._aligns else None
        if not isinstance(trial, Trial):
            return trial
        if trial.reserved:
            return _hints(trial)
        return trial.asking.once(("hints", trial.site.situation, trial.facts), lambda: _hints(trial))

    def numa_fits(self, cycle: Cycle, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        trial = self._trial(cycle, pod, node) if self._aligns else None
        if not isinstance(trial, Trial):
            return trial
        if trial.reserved:
            return _fits(trial, zones)
        return trial.asking.once((zones, trial.site.situation, trial.facts), lambda: _fits(trial, zones))

    def _trial(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Trial | Reject | None:
        kept = self._kept(cycle, pod)
        if not isinstance(kept, Kept):
            return kept
        site = self._site(kept, node)
        if site is None:
            return None
        asking = kept.asking
        return Trial(
            site=site,
            asking=asking,
            facts=self._judge.facts(node),
            reserved=cycle.reserved.get(node.name, ()),
            required=asking.required,
        )


def _fits(trial: Trial, zones: BitMask | None) -> Reject | None:
    found = trial.placed(zones)
    return rejection(found) if isinstance(found, Refusal) else None


def _hints(trial: Trial) -> Hints | Reject | None:
    inventory, promised = trial.site.inventory, trial.asking.promised
    if promised is not None:
        found = designated_hints(inventory, promised)
    else:
        found = device_hints(trial.asking.demand, inventory, trial.allocation)
    if isinstance(found, Refusal):
        return rejection(found)
    if not found:
        return None
    return {kind: tuple(Hint(h.zones, h.preferred, h.score) for h in hints) for kind, hints in found.items()}
