"""Starting Flower between machines, or on one: certificates, keys, and a whole network on loopback.

Needs the extra ``flower``. What runs *in* that network is `consortia.engines.flower`.
"""
