"""Our copy of the semantic conventions' names is theirs, in the version that we name."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import (
    db_attributes,
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    service_attributes,
    url_attributes,
)
from opentelemetry.semconv.schemas import Schemas

from segue.tracing import names

THEIRS = {
    value
    for module in (
        *(db_attributes, error_attributes, gen_ai_attributes, http_attributes),
        *(service_attributes, url_attributes),
    )
    for value in vars(module).values()
    if isinstance(value, str)
}
OURS = {key: value for key, value in vars(names).items() if key.isupper()}
PINNED = {
    key: value
    for key, value in OURS.items()
    if key.startswith(("GEN_AI_", "DB_", "ERROR_", "HTTP_", "URL_")) or value.startswith("service.")
}


@pytest.mark.parametrize("key", PINNED)
def test_a_pinned_name_is_the_conventions(key: str) -> None:
    assert PINNED[key] in THEIRS


def test_the_schema_is_one_that_exists() -> None:
    assert names.SCHEMA_URL in {schema.value for schema in Schemas}


def test_no_name_means_two_things() -> None:
    attributes = [v for k, v in OURS.items() if not k.startswith(("SPAN_", "SERVICE_", "LINK_"))]
    assert len(attributes) == len(set(attributes))
