"""Calling the service from other programs (extra `client`). This loads neither Numba nor a policy."""

from shoal.live.client.clients import AsyncClient, AsyncRemotePopulation, Client, RemotePopulation

__all__ = ["AsyncClient", "AsyncRemotePopulation", "Client", "RemotePopulation"]
