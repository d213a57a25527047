"""This package shares the batch resources of nodes with Hadoop YARN.

koord-yarn-operator gives each NodeManager what its node lends and pods leave of it, and writes what YARN holds to the
node, where koord-manager subtracts it. What a node lends is decided in koord.manager; Hadoop's wire format is in
koord.wire.
"""
