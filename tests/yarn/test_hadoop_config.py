"""YARN clusters as Hadoop's files describe them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID
from koord.yarn.hadoop_config import BadHadoopConfig, clusters_from_files, parse_properties


def site(**properties: str) -> str:
    """Two underscores stand for a dot, one for a hyphen."""
    listed = "".join(
        f"<property><name>{name.replace('__', '.').replace('_', '-')}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    return f"<?xml version='1.0'?><configuration>{listed}</configuration>"


RM = "yarn__resourcemanager__"


def addresses(text: str, **files: str) -> list[tuple[str, str, str]]:
    clusters = clusters_from_files({"yarn-site.xml": text, **files})
    assert isinstance(clusters, tuple)
    return [(one.id, str(one.client), str(one.admin)) for one in clusters[0].managers]


def test_without_properties_hadoops_defaults_count() -> None:
    assert addresses("") == addresses(site()) == [("", "0.0.0.0:8032", "0.0.0.0:8033")]


def test_addresses_and_host_names() -> None:
    stated = site(**{f"{RM}address": "rm.yarn:18032", f"{RM}admin__address": "rm.yarn:18033"})
    assert addresses(stated) == [("", "rm.yarn:18032", "rm.yarn:18033")]
    assert addresses(site(**{f"{RM}hostname": "rm"})) == [("", "rm:8032", "rm:8033")]
    assert addresses(site(**{f"{RM}address": "rm"})) == [("", "rm:8032", "0.0.0.0:8033")]
    assert addresses(site(**{f"{RM}address": "[fd00::1]:8032"}))[0][1] == "[fd00::1]:8032"


def test_variables_are_replaced_also_from_core_site() -> None:
    text = site(**{f"{RM}address": "${my.host}:1", "my__host": "${base}"})
    files = {"yarn-site.xml": text, "core-site.xml": site(base="b")}
    clusters = clusters_from_files(files)
    assert isinstance(clusters, tuple)
    assert str(clusters[0].managers[0].client) == "b:1"
    endless = addresses(site(**{f"{RM}hostname": "${a}", "a": "${b}", "b": "${a}"}))
    assert endless[0][1].startswith("${")


def test_a_pair_has_an_address_each() -> None:
    text = site(
        **{
            f"{RM}ha__enabled": "true",
            f"{RM}ha__rm_ids": "rm1, rm2",
            f"{RM}address__rm1": "one:1",
            f"{RM}admin__address__rm1": "one:2",
            f"{RM}hostname__rm2": "two",
        }
    )
    assert addresses(text) == [("rm1", "one:1", "one:2"), ("rm2", "two:8032", "two:8033")]


def test_each_file_is_a_cluster() -> None:
    clusters = clusters_from_files(
        {
            "yarn-site.xml": site(**{f"{RM}hostname": "d"}),
            "blue.yarn-site.xml": site(**{f"{RM}hostname": "${h}"}),
            "blue.core-site.xml": site(h="b"),
            "core-site.xml": site(h="not-of-blue"),
        }
    )
    assert isinstance(clusters, tuple)
    assert [(one.id, one.managers[0].client.host) for one in clusters] == [(DEFAULT_CLUSTER_ID, "d"), ("blue", "b")]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param({}, "yarn-site.xml: the file is missing", id="missing"),
        pytest.param({"yarn-site.xml": "<configuration>"}, "yarn-site.xml: no XML", id="no-xml"),
        pytest.param({"yarn-site.xml": "<a/>"}, "the root element is a and not configuration", id="other-root"),
        pytest.param(
            {"yarn-site.xml": '<!DOCTYPE a [<!ENTITY b "c">]><configuration/>'}, "entities", id="entity-expansion"
        ),
        pytest.param({"yarn-site.xml": site(**{f"{RM}address": "h:x"})}, 'is "h:x" and not host:port', id="address"),
        pytest.param({"yarn-site.xml": site(**{f"{RM}ha__enabled": "true"})}, "ha.rm-ids names none", id="no-ids"),
        pytest.param(
            {"yarn-site.xml": "", "core-site.xml": site(hadoop__security__authentication="kerberos")},
            "kerberos, which is not supported",
            id="kerberos",
        ),
        pytest.param({"yarn-site.xml": "", "b.yarn-site.xml": "x"}, "b.yarn-site.xml: no XML", id="other-cluster"),
    ],
)
def test_files_that_cannot_be_used_are_named(files: dict[str, str], reason: str) -> None:
    wrong = clusters_from_files(files)
    assert isinstance(wrong, BadHadoopConfig)
    assert reason in str(wrong)


@given(st.text(max_size=200))
def test_any_text_is_properties_or_a_reason(text: str) -> None:
    assert isinstance(parse_properties(text), dict | str)
