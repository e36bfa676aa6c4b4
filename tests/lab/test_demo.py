"""The demo at its smallest, over the proxy, which needs neither root nor tools; and the links that it chooses from."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess

import pytest
import warm
from seen import colours

from sparsewire.cli import main
from sparsewire.errors import InputError, SparsewireError
from sparsewire.lab import measure
from sparsewire.lab.demo import command as demo
from sparsewire.lab.demo import link
from sparsewire.lab.demo.picture import COLOURS
from sparsewire.lab.net import ranks
from sparsewire.lab.net.network import Network, bits_per_second, burst
from sparsewire.lab.net.proxy import Proxy
from sparsewire.lab.net.user_namespace import UserNamespace

warm.needs("sklearn.datasets", "matplotlib.pyplot")
pytestmark = pytest.mark.skipif(not measure.has("torch"), reason="torch is not installed")
STEPS, RATE = 60, "40mbit"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A short demo: its picture, its JSON and what it printed."""
    if not measure.has("sklearn"):
        pytest.skip("scikit-learn is not installed")
    folder = tmp_path_factory.mktemp("demo")
    words = ["demo", "--steps", str(STEPS), "--hidden", "128", "--rate", RATE, "--json", str(folder / "demo.json")]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(link, "KINDS", {"a proxy": link.KINDS[[*link.KINDS][-1]]})
        patch.setattr(ranks, "subprocess", warm.WORKERS)
        assert main([*words, "-o", str(folder / "pictures" / "demo.png")]) == 0
    return folder, json.loads((folder / "demo.json").read_text()), out.getvalue()


def test_the_demo_draws_a_picture(shown):
    folder, _, out = shown
    picture = folder / "pictures" / "demo.png"
    assert str(picture) in out
    assert colours(picture) >= set(COLOURS), "a line for each training"


def test_the_demo_prints_what_it_measured_and_the_lines_to_write(shown):
    _, found, out = shown
    assert set(found["arms"]) == {demo.PLAIN, demo.COMPRESSED}
    for name, facts in found["arms"].items():
        curve = found["curves"][name]
        assert all(len(steps) == STEPS for steps in curve.values())
        assert facts["bytes"] == sum(curve["bytes"]) and min(curve["seconds"]) > 0
        assert f"{facts['accuracy']:.2%}" in out and f"{facts['bytes']:,.0f}" in out
    assert f"{RATE} both ways: a proxy" in out
    assert out.endswith(f"{demo.YOURS}\n") and "attach(model, optimizer=optimizer, total_steps=N)" in out


def test_the_demo_learns_with_far_fewer_bytes(shown):
    _, found, _ = shown
    plain, ours = (found["arms"][name] for name in (demo.PLAIN, demo.COMPRESSED))
    assert min(plain["accuracy"], ours["accuracy"]) > 0.5, "guessing gives 0.1"
    dense = 4 * found["parameters"] * STEPS
    assert dense <= plain["bytes"] < 1.1 * dense, "two ranks of a ring send each gradient once"
    assert ours["bytes"] < plain["bytes"] / 5 and found["ratio"] == plain["bytes"] / ours["bytes"]


def test_what_both_trainings_send_crosses_the_proxy_no_faster_than_its_rate(shown):
    _, found, _ = shown
    for facts in found["arms"].values():
        least = (facts["bytes"] - 2 * burst(RATE)) * 8 / bits_per_second(RATE)
        assert facts["seconds"] >= 0.8 * least, "between steps, which is not counted, bytes may arrive as well"


def test_the_demo_uses_the_line_that_it_recommends_unless_it_is_given_a_scheme():
    hook = {"hook": "sparsewire"}
    assert demo.choose_arms(None, 60)[demo.COMPRESSED] == {**hook, "total_steps": 60}
    assert demo.choose_arms("threshold(0.1)", 60)[demo.COMPRESSED] == {**hook, "scheme": "threshold(0.1)"}
    assert demo.line_of("topk(1%)", 60) == 'attach(model, "topk(1%)", optimizer=optimizer)'


def test_the_demo_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(measure, "has", lambda package: package != "sklearn")
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


# --- links -------------------------------------------------------------------------------------------------------


def impossible(rate, stack):
    raise SparsewireError("not here")


def test_the_first_link_that_can_be_made_is_taken(monkeypatch):
    monkeypatch.setattr(link, "KINDS", {"one": impossible, "two": lambda rate, stack: [rate], "three": impossible})
    with link.slow_link("1mbit") as (endpoints, name):
        assert (endpoints, name) == (["1mbit"], "two")


def test_without_any_the_demo_says_how_it_can_run(monkeypatch):
    monkeypatch.setattr(link, "KINDS", {"one": impossible, "two": impossible})
    with pytest.raises(InputError, match=r"not here; not here.*--rate unlimited"), link.slow_link("1mbit"):
        pass
    with link.slow_link("unlimited") as (endpoints, name):
        assert [one.proxy for one in endpoints] == [None, None] and "not limited" in name


def test_only_addresses_are_changed_on_their_way_into_the_store():
    import torch.distributed as dist

    from sparsewire.lab.net.proxy_store import ProxyStore

    address = b"\x02\x00\x9c\x40\x7f\x00\x00\x01"  # port 40000
    with Proxy("1mbit") as endpoints:
        store = ProxyStore(dist.HashStore(), 0, endpoints[0].proxy)
        store.set("words", "127.0.0.1:40000")
        store.set("facts", b"before" + address + b"after")
    assert store.get("words") == b"127.0.0.1:40000"
    found = store.get("facts")
    assert (found[:8], found[10:]) == (b"before\x02\x00", address[4:] + b"after")
    assert abs(int.from_bytes(found[8:10], "big") - 40000) == 1 and store.addresses == 1


def test_a_proxy_that_is_gone_is_an_error():
    import torch.distributed as dist

    from sparsewire.lab.net.proxy_store import ProxyStore

    with Proxy("1mbit") as endpoints:
        place = endpoints[0].proxy
    with pytest.raises(OSError, match="refused"):
        ProxyStore(dist.HashStore(), 0, place).set("facts", b"\x02\x00\x9c\x40\x7f\x00\x00\x01")


@pytest.fixture
def inside():
    """The prefix of commands in a user namespace."""
    try:
        namespace = UserNamespace()
    except SparsewireError as error:
        pytest.skip(str(error))
    with namespace:
        yield namespace.prefix


def test_in_a_user_namespace_networks_can_be_made_that_nobody_else_sees(inside):
    try:
        network = Network(2, "1mbit", inside=inside)
    except SparsewireError as error:
        pytest.skip(str(error))
    with network as endpoints:
        names = [endpoint.prefix[-1] for endpoint in endpoints]
        seen = subprocess.run([*inside, "ip", "netns", "list"], capture_output=True, text=True).stdout
        limits = subprocess.run([*endpoints[0].prefix, "tc", "qdisc"], capture_output=True, text=True).stdout
        others = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert all(name in seen and name not in others for name in names)
    assert "tbf" in limits and "rate 1Mbit" in limits


def test_a_user_namespace_that_cannot_be_made_says_why(monkeypatch):
    monkeypatch.setattr("sparsewire.lab.net.user_namespace.HOLD", "echo forbidden >&2; exit 1")
    with pytest.raises(SparsewireError, match=r"forbidden|not found|no user namespace"):
        UserNamespace()
