"""The known attacks on a site's rows, tried by the site itself before it takes part in a study.

Everything runs in one process: the site with its own file, stand-ins for the other sites, the
library's own server, and where an attack needs one a server or site that lies.
"""

from consortia.federation.rehearsal.course import Finding, rehearsed

__all__ = ["Finding", "rehearsed"]
