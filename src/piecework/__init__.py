"""Piecework: typed background work and workflows for Python on AWS."""
