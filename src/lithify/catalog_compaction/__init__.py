"""Trims the history of the catalog to what no part of the cluster needs any more.

facts          what the nodes answer, and what else decides: values
decision       which version becomes the first one that is left, and what holds it
"""
