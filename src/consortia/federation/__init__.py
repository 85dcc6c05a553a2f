"""Running studies between institutions: over Flower, letters, vantage6 or NVFlare.

Starting Flower between machines, or on one, needs the extra ``flower``. What the sites and the
server compute and send is in `consortia.engines.messages`, over whichever network.
"""
