"""Turn a KubeSchedulerConfiguration into profiles: read the file, check it against the plugins, make them."""

from koord.scheduler.assembly.assembly import Assembly
from koord.scheduler.assembly.reading import load
from koord.scheduler.assembly.unbuilt import without_unbuilt
from koord.scheduler.assembly.writing import effective, written

__all__ = ["Assembly", "effective", "load", "without_unbuilt", "written"]
