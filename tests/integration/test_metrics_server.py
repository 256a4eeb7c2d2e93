"""The page of a service, asked for over HTTP by whoever may ask."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from segue.instruments import Service
from segue.meters import Meters
from segue.metrics_server import serve_page
from tests.metrics_page import Page
from tests.served import AS_PROMETHEUS


@pytest.fixture
def url(free_port: int) -> Iterator[str]:
    meters = Meters(Service.SCHEDULER, {"model_name": "m"})
    meters.tally("segue:steps").add(3)
    stop = serve_page(meters, "127.0.0.1", free_port)
    yield f"http://127.0.0.1:{free_port}"
    stop()


@pytest.mark.parametrize("headers", [{}, AS_PROMETHEUS], ids=["anybody", "prometheus"])
def test_names_keep_their_colon_whoever_asks(url: str, headers: dict[str, str]) -> None:
    """A board asks for segue:steps_total, and segue_steps_total is another name."""
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert Page.parse(response.read().decode()).total("segue:steps_total") == 3


def test_there_is_no_other_page(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/else", timeout=30)
    assert refused.value.code == 404
    refused.value.close()
