"""Servers of one model as a pool: what each engine on such servers shares.

options.py      where the servers are, and how often they are probed
server_urls.py  where the pool's members come from: a list, a file that changes, DNS
profile.py      what is known of each server
pool.py         the members: probes, failures, draining, the choice of one for a run
routing.py      the rule of that choice (no I/O)
prefixes.py     which prefixes a server has probably cached (no I/O)
refusals.py     a server's error as ours (no I/O)
text.py         text that is decoded here, because the server sends none
engine.py       the part of the engine port that they have in common
runs.py         a run: tries the next server while no token has come
"""
