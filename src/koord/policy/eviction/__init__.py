"""This package holds the record of one eviction and the bounded ledger of them, the same for every program that evicts
pods.
"""
