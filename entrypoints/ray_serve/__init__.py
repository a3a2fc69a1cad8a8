"""Antiphon as an application of Ray Serve: `serve run antiphon.entrypoints.ray_serve:build`.

application   what `build` returns: a deployment, with the settings that its replicas get
checks        the settings that cannot work behind Serve
scaling       how many replicas the load needs
replica       one server, without a socket: Serve hands it the requests
asgi          what the replica does in place of the transport
stop_notice   how a replica learns that Serve stops it
"""

from antiphon.entrypoints.ray_serve.application import build

__all__ = ["build"]
