"""This package decides what of a node is reclaimed for batch and mid pods, and what is written for it. Pure;
decisions keep their terms.
"""
