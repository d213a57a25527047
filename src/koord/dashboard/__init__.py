"""The dashboard: a read-only web page over a cluster, served on a loopback address to whoever has its token.

It shows what others worked out. The rows of nodes and the reports arrive by injection: the command line reads them from
informers and from the explain endpoints, with the functions behind its own commands.
"""
