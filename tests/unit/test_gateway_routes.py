"""What a request asks for."""

from __future__ import annotations

import json

import pytest

from gpubox.gateway import routes
from gpubox.gateway.http_connection import HttpRequest, RequestRefused
from gpubox.profiles.profile import Profile


def request(target: str = "/", method: str = "GET", body: bytes = b"", **headers: str) -> HttpRequest:
    return with_headers(headers, target, method, body)


def with_headers(headers: dict[str, str], target: str = "/", method: str = "GET", body: bytes = b"") -> HttpRequest:
    fields = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return HttpRequest(method, target, fields, body, True, True, "127.0.0.1", 0.0, 0.0)


def test_the_model_is_read_from_the_body_or_the_query() -> None:
    route = routes.route_of(request("/v1/chat/completions", "POST", b'{"model":"b","stream":true,"messages":[]}'))
    assert (route.model, route.stream, route.own) == ("b", True, "")
    assert routes.route_of(request("/props?model=b")).model == "b"
    assert routes.route_of(request("/tokenize", "POST", b'{"content":"x"}')).model is None


def test_an_empty_model_is_a_name_and_none_is_none() -> None:
    assert routes.route_of(request("/v1/chat/completions", "POST", b'{"model":""}')).model == ""
    assert routes.route_of(request("/props?model=")).model == ""
    assert routes.route_of(request("/props?model=b", "POST", b'{"model":null}')).model == "b"


@pytest.mark.parametrize(
    ("target", "own"),
    [("/health", "health"), ("/v1/models", "models"), ("//v1//models/", "models"), ("/metrics", "metrics"), ("/", "")],
)
def test_the_gateway_answers_some_paths_itself(target: str, own: str) -> None:
    assert routes.route_of(request(target)).own == own
    assert routes.route_of(request(target, "HEAD")).own == (own or "health")  # Ollama's program asks HEAD /


@pytest.mark.parametrize("target", ["/slots/0?action=save", "/%73lots/0?action=restore", "//slots/0", "/slots/"])
def test_the_slots_files_are_closed_but_to_a_profile_with_its_own(target: str) -> None:
    if target == "/slots/":
        assert routes.route_of(request(target)).path == "/slots"
        return
    route = routes.route_of(request(target, "POST", b"{}"))
    for profile in (Profile("a", "a.gguf"), Profile("a", upstream="http://b", flags={"slot-save-path": "/s"})):
        with pytest.raises(RequestRefused) as refused:
            routes.check_slots(route.path, profile)
        assert refused.value.status == 403
    routes.check_slots(route.path, Profile("a", "a.gguf", flags={"slot-save-path": "/s"}))  # the owner's own


@pytest.mark.parametrize("target", ["/v1/../gpubox/status", "/v1/%2e%2e/x", "/a%00b", "/a\\b", "/./x"])
def test_paths_that_mean_something_else_are_refused(target: str) -> None:
    with pytest.raises(RequestRefused):
        routes.route_of(request(target))


def test_a_list_names_no_model_and_passes_to_an_endpoint_that_takes_one() -> None:
    for body in (b'[{"id": 0, "scale": 0.5}]', b"\n []"):
        route = routes.route_of(request("/lora-adapters?model=b", "POST", body, content_type="application/json"))
        assert (route.path, route.model) == ("/lora-adapters", "b")
    with pytest.raises(RequestRefused):
        routes.route_of(request("/lora-adapters", "POST", b"[{]", content_type="application/json"))


@pytest.mark.parametrize("body", [b"{", b'{"model":7}', b'{"model":"\xff"}', b"[]", b'{"stream":"yes"}'])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused) as refused:
        routes.route_of(request("/v1/chat/completions", "POST", body, content_type="application/json"))
    assert refused.value.status == 400


def test_errors_look_as_the_clients_api_has_them() -> None:
    assert json.loads(routes.error_body(503, "No.", "openai")) == {
        "error": {"message": "No.", "type": "overloaded_error", "code": 503}
    }
    assert json.loads(routes.error_body(401, "No.", "anthropic")) == {
        "type": "error", "error": {"message": "No.", "type": "authentication_error"}
    }  # fmt: skip
    assert routes.error_event(502, "No.", "anthropic").startswith(b"event: error\ndata: {")


def test_the_key_comes_in_either_header() -> None:
    assert routes.secret_of(request(authorization="Bearer  abc ")) == "abc"
    assert routes.secret_of(request(x_api_key="abc")) == "abc"
    assert routes.secret_of(request(authorization="Basic abc")) == ""


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1:8080", True), ("[::1]:8080", True), ("[fe80::1%25eth0]:8080", True), ("192.168.1.5", True),
        ("", True), ("localhost", True), ("LOCALHOST.:8080", True), ("box", True), ("box.lan:8080", True),
        ("box.local", True), ("llm.home", True), ("host.docker.internal:8080", True),
        ("host.containers.internal", True), ("rebound.example:8080", False), ("127.0.0.1.rebound.example", False),
        ("lan", False), ("box.rebound.example", False), ("127.1", False), ("localhost:80@rebound.example", False),
    ],
)  # fmt: skip
def test_the_names_of_this_machine(host: str, own: bool) -> None:
    names = routes.own_names("Box.lan", ["llm.home", "0.0.0.0"])
    assert (not routes.page_refusal(with_headers({"host": host}), names)) == own


def test_a_machine_without_a_name_has_no_other_ones() -> None:
    assert not {"", ".local"} & routes.own_names("", [])


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        ("http://box:3000", True), ("https://llm.home", True), ("http://localhost:3000", True), ("http://[::1]", True),
        ("http://192.168.1.5:3000", True), ("http://192.168.1.6", False), ("https://rebound.example", False),
        ("null", False), ("http://", False),
    ],
)  # fmt: skip
def test_a_page_of_this_machine_may_ask_under_each_of_its_names(origin: str, own: bool) -> None:
    names = routes.own_names("Box.lan", ["llm.home"])
    asked = with_headers({"host": "192.168.1.5:8080", "origin": origin})
    assert (not routes.page_refusal(asked, names)) == own
