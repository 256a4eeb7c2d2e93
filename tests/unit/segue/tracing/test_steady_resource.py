"""A resource that is hashed once is the resource that it was made of."""

from __future__ import annotations

from unittest.mock import patch

from opentelemetry.sdk.resources import Resource

from segue.tracing.steady_resource import SteadyResource


def test_is_found_by_what_it_was_made_of() -> None:
    plain = Resource.create({"service.name": "segue-scheduler", "numbers": [1, 2]})
    steady = SteadyResource(plain)
    assert steady == plain
    assert plain == steady
    assert {plain: "spans"}[steady] == "spans"
    assert steady != SteadyResource(Resource.create({"service.name": "other"}))
    assert (steady.attributes, steady.schema_url) == (plain.attributes, plain.schema_url)


def test_is_hashed_once() -> None:
    steady = SteadyResource(Resource.create({"service.name": "segue-scheduler"}))
    with patch.object(Resource, "__hash__", side_effect=AssertionError):
        assert {steady: 1}[steady] == 1
