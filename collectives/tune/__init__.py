"""``topoccl tune``: measures the candidates of a group's calls on its real fabric.

Rank 0 decides and the others do as it says. :mod:`candidates` lists what is worth measuring, :mod:`race` says who is measured how often,
:mod:`session` spends the budget and fits the cost model, all of them without any communication; :mod:`work` is what every rank does.
"""
