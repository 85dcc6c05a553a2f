"""Messages between the server and the sites: envelope, gate, masks and identities.

Flower, letters, vantage6 and NVFlare carry them, each by a `consortia.engines.messages.transport`.
"""
