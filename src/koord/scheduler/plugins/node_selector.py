"""Evaluate compiled node selector terms and label selectors on the columns of many nodes."""

from __future__ import annotations

import numpy as np

from koord.policy.node_match import NAME_FIELD, NodeTerm, NodeTerms, RequiredNodeAffinity
from koord.scheduler.cache.node_table import Bools, NodeTable, Rows
from koord.values.selector import Operator, Requirement, Selector


def node_term_mask(term: NodeTerm, table: NodeTable, rows: Rows) -> Bools:
    if term.error:
        return np.zeros(len(table.alive[rows]), np.bool_)
    mask = selector_mask(term.labels, table, rows)
    for field, value, equal in term.fields:
        mask &= _field_mask(table, rows, field, value) == equal
    return mask


def node_terms_mask(selector: NodeTerms, table: NodeTable, rows: Rows) -> Bools:
    mask = np.zeros(len(table.alive[rows]), np.bool_)
    for term in selector.terms:
        mask |= node_term_mask(term, table, rows)
    return mask


def node_affinity_mask(required: RequiredNodeAffinity, table: NodeTable, rows: Rows) -> Bools:
    if required.labels is None:
        if required.affinity is None:
            return np.ones(len(table.alive[rows]), np.bool_)
        return node_terms_mask(required.affinity, table, rows)
    mask = selector_mask(required.labels, table, rows)
    return mask if required.affinity is None else mask & node_terms_mask(required.affinity, table, rows)


def selector_mask(selector: Selector, table: NodeTable, rows: Rows) -> Bools:
    """Compute `selector.matches` on the labels of many nodes."""
    if selector.matches_nothing:
        return np.zeros(len(table.alive[rows]), np.bool_)
    mask = np.ones(len(table.alive[rows]), np.bool_)
    for requirement in selector.requirements:
        mask &= _requirement_mask(requirement, table, rows)
    return mask


def _requirement_mask(requirement: Requirement, table: NodeTable, rows: Rows) -> Bools:
    values = table.label_column(requirement.key)
    codes = values.codes[rows]
    operator = requirement.operator
    mask: Bools
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        mask = (codes != 0) == (operator is Operator.EXISTS)
    elif operator in (Operator.GREATER_THAN, Operator.LESS_THAN):
        mask = values.map_values(rows, lambda value: requirement.matches({requirement.key: value})) != 0
    else:
        wanted = [code for value in requirement.values if (code := values.code_of(value)) is not None]
        mask = np.isin(codes, wanted) if len(wanted) > 1 else codes == (wanted[0] if wanted else -1)
        if operator in (Operator.NOT_IN, Operator.NOT_EQUALS):
            mask = ~mask
    return mask


def _field_mask(table: NodeTable, rows: Rows, field: str, value: str) -> Bools:
    mask = np.full(table.size, field != NAME_FIELD and value == "", np.bool_)
    named = table.index.get(value) if field == NAME_FIELD else None
    if named is not None:
        mask[named.row] = True
    return mask[rows]
