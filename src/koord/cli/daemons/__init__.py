"""The entry points of the programs (koord-scheduler, koord-manager, koordlet and others), and their flags.

Importing it relaxes the garbage collector at once: a program imports hundreds of modules first, which leave nothing to
collect, and looking for it would take a tenth of that time.
"""

from koord.telemetry.process import relax_gc

relax_gc()
