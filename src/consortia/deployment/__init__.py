"""Starting Flower between machines, or on one: certificates, keys, and a whole network on loopback.

Needs the extra ``flower``. What runs *in* that network is `consortia.engines.flower`.
"""

from consortia.deployment.certificates import make_certificates, make_node_key
from consortia.deployment.loopback import Loopback, Node

__all__ = ["Loopback", "Node", "make_certificates", "make_node_key"]
