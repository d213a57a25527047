"""A quota's report is right, and its loans add up."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import DEFAULT_QUOTA, ROOT_QUOTA, SYSTEM_QUOTA
from koord.scheduler.plugins.elastic_quota.admission import QuotaPodRefused
from koord.scheduler.plugins.elastic_quota.report import QuotaLoan, QuotaReport, quota_report, quota_reports
from tests.scheduler.plugins.elastic_quota.quota_builders import pod, quota, quota_manager, two

Q = quota


def test_a_borrower_and_its_lenders() -> None:
    quotas = [Q("top", 20, 20, is_parent=True), Q("busy", 8, 20, parent="top"), Q("idle", 10, 20, parent="top")]
    asks = pod("p", "busy", 17)
    made = quota_manager(20, quotas, [asks])
    refusal = made.check_pod(pod("more", "busy", 21))
    assert refusal is not None
    told = QuotaPodRefused("default/more", "busy", refusal, 3.0)
    made.handle(told)
    assert quota_report(made, "busy") == QuotaReport(
        quota="busy",
        tree="",
        parent="top",
        depth=1,
        lends=True,
        guaranteed=two(8),
        guaranteed_now=two(8),
        cap=two(20),
        entitled=two(17),
        used={},
        asked=two(17),
        borrowed_from=(QuotaLoan("idle", two(9)),),
        last_refusal=told,
    )
    idle = quota_report(made, "idle")
    assert idle is not None
    assert idle.lent_to == (QuotaLoan("busy", two(9)),)


def test_what_nobody_was_promised_is_borrowed_first() -> None:
    made = quota_manager(30, [Q("busy", 8, 50), Q("idle", 10, 50)], [pod("p", "busy", 25, has_node=True)])
    busy = quota_report(made, "busy")
    assert busy is not None
    assert busy.borrowed_from == (QuotaLoan("idle", two(5)), QuotaLoan(ROOT_QUOTA, two(12)))


def test_shrunk_guarantees_and_overuse_show() -> None:
    made = quota_manager(10, [Q("a", 15, 50), Q("b", 5, 50)], [pod("p", "a", 9, has_node=True), pod("q", "b", 9)])
    a = quota_report(made, "a")
    assert a is not None
    assert (a.guaranteed_now, a.overused) == ({"cpu": 7500}, {"cpu": 1500})


def test_a_guarantee_does_not_shrink_because_the_parent_asks_for_little() -> None:
    quotas = [Q("top", 20, is_parent=True), Q("a", 10, parent="top"), Q("b", 10, parent="top")]
    made = quota_manager(20, quotas, [pod("p", "a", 3)])
    assert [s.guaranteed_now for s in quota_reports(made)][:3] == [two(20), two(10), two(10)]
    short = quota_manager(10, quotas, [pod("p", "a", 3)])
    assert [s.guaranteed_now for s in quota_reports(short)][:3] == [two(10), two(5), two(5)]


def test_all_of_them_from_the_top_down() -> None:
    quotas = [
        Q("b", 5, is_parent=True),
        Q("b1", 5, parent="b"),
        Q("a", 5),
        Q("t", 9, tree="t", is_tree_root=True, total=two(9)),
        Q("lost", parent="nobody"),
    ]
    made = quota_manager(10, quotas, multi_quota_tree=True)
    found = list(quota_reports(made))
    assert [(s.quota, s.tree, s.depth) for s in found] == [
        ("a", "", 0),
        ("b", "", 0),
        ("b1", "", 1),
        ("t", "t", 0),
        ("lost", "", 0),
        (DEFAULT_QUOTA, "", 0),
        (SYSTEM_QUOTA, "", 0),
    ]
    assert [s.quota for s in found if s.adrift] == ["lost"]
    assert [quota_report(made, s.quota) for s in found] == found
    assert quota_report(made, "nobody") is None


rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 12), st.booleans()), max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(0, 40))
def test_loans_add_up(found: list[tuple[int, int, int, bool]], total: int) -> None:
    quotas = [Q(f"q{i}", low, low + more, lends=lends) for i, (low, more, _, lends) in enumerate(found)]
    made = quota_manager(total, quotas, [pod(f"p{i}", f"q{i}", row[2]) for i, row in enumerate(found)])
    lent: dict[tuple[str, str], int] = {}
    borrowed: dict[tuple[str, str], int] = {}
    for s in quota_reports(made):
        for loan in s.lent_to:
            lent[s.quota, loan.quota] = loan.amounts["cpu"]
        for loan in s.borrowed_from:
            borrowed[loan.quota, s.quota] = loan.amounts["cpu"]
        if s.quota in (DEFAULT_QUOTA, SYSTEM_QUOTA):
            continue
        outside = s.entitled["cpu"] - s.guaranteed_now["cpu"]
        assert sum(loan.amounts["cpu"] for loan in s.borrowed_from) == max(0, outside)
        assert sum(loan.amounts["cpu"] for loan in s.lent_to) <= max(0, -outside)
    assert lent == {pair: amount for pair, amount in borrowed.items() if pair[0] != ROOT_QUOTA}
