"""The demo's slow link between two ranks: whichever of three kinds this machine allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sparsewire.errors import InputError, SparsewireError

from ..arguments import UNLIMITED
from ..net.network import Network, obstacle
from ..net.proxy import Proxy
from ..net.ranks import Endpoint
from ..net.user_namespace import UserNamespace

RANKS = 2
Endpoints = Sequence[Endpoint]


def _namespaces(rate: str, stack: ExitStack) -> Endpoints:
    if problem := obstacle():
        raise SparsewireError(problem)
    return stack.enter_context(Network(RANKS, rate))


def _user_namespaces(rate: str, stack: ExitStack) -> Endpoints:
    inside = stack.enter_context(UserNamespace()).prefix
    return stack.enter_context(Network(RANKS, rate, inside=inside))


def _proxy(rate: str, stack: ExitStack) -> Endpoints:
    return stack.enter_context(Proxy(rate))


KINDS: dict[str, Callable[[str, ExitStack], Endpoints]] = {
    "network namespaces, limited by tc": _namespaces,
    "network namespaces of a user without root, limited by tc": _user_namespaces,
    "a rate-limiting proxy on 127.0.0.1, as network namespaces cannot be made here": _proxy,
}


@contextmanager
def slow_link(rate: str) -> Iterator[tuple[Endpoints, str]]:
    """The endpoints of two ranks, and what limits the link between them."""
    if rate == UNLIMITED:
        yield [Endpoint()] * RANKS, "127.0.0.1, not limited"
        return
    with ExitStack() as stack:
        yield _first_possible(rate, stack)


def _first_possible(rate: str, stack: ExitStack) -> tuple[Endpoints, str]:
    problems = []
    for name, make in KINDS.items():
        try:
            with ExitStack() as own:
                endpoints = make(rate, own)
                stack.push(own.pop_all())
                return endpoints, name
        except SparsewireError as error:
            problems.append(str(error))
    raise InputError(f"no link can be limited here ({'; '.join(problems)}); without a limit: --rate {UNLIMITED}")
