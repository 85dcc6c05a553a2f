"""Flower: the engine of messages whose sites are its nodes; `grid` has its two apps."""

from __future__ import annotations

from typing import Any

from consortia.engines.messages.engine import MessageEngine


class FlowerEngine(MessageEngine):
    """The server of a run whose sites are Flower nodes; it holds no row and no site's state.

    To be used in a ``ServerApp``; `consortia flower new` writes one. Of their rows the sites tell
    the server what the algorithm sends, and before the run numbers of rows, types of arrays, least
    and largest label, moments of the columns where the study needs them, masked with keys, and a
    digest under a key that stays at the site. Every exchange of the algorithm is one message to
    each site; all chains travel in it. The draws are those of `LocalEngine` up to rounding.

    Args:
        transport: Flower's ``Grid``, or another `consortia.engines.messages.transport.Transport`.
        sites: names of all sites, in the order of the study.
        deadline: seconds that a site has for each answer, restarts of its node included.
        resend: seconds after which a request that was not answered is sent again; a site answers
            the same request twice with the same bytes.
        minimum_sites: k: with ``on_missing="continue"`` so many sites make an average.
        on_missing: what happens when a site does not answer in time: ``"stop"`` ends the run with
            `consortia.errors.SiteMissingError`, the draws before it kept; with ``"continue"`` the
            average is of the sites that answered, with their weights scaled to sum to one. *The
            draws are then of another density*: who took part in which round is recorded, in the
            group ``participation`` of the result. A sum is never taken without a site.
        join_deadline: seconds that the nodes have to come; ``deadline`` when None.
        run: identity of the run, by which the sites know their state again: 32 digits 0-9 and
            a-f; made when None.
        study: fingerprint of the study, the same at server and sites.
        keys: of the coordinator and of all sites, with which messages are signed and verified;
            None where sites' policies name none.
        registered: the study states what else the sites would agree on: they say who they are, and
            agree, in one message.
        maximum_position: farthest that a site's position may be from the prior's centre, in any
            parameter, in standard deviations of the prior. One site beyond it, or beyond a thousand
            times the median of the sites' gradients or moves, ends the run with
            `consortia.errors.SiteImplausibleError`.
        maximum_step: farthest that a site may move a chain in a round, likewise.

    Raises:
        MissingExtraError: a Flower grid is given, and flwr is not installed.
        InputError: an argument is out of its range.

    Example:
        >>> import consortia
        >>> engine = consortia.FlowerEngine(grid, ["oslo", "lima", "bern"])  # doctest: +SKIP
        >>> tree = consortia.sample(..., engine=engine)  # doctest: +SKIP
    """

    def transport_of(self, network: Any) -> Any:
        """Return the transport over a grid of Flower."""
        if not hasattr(network, "push_messages"):
            return network
        from consortia.engines.flower.grid import GridTransport

        return GridTransport(network)
