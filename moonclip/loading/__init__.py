"""From what is stored to a person's objects: compared first, then read into their memory.

``stored`` is an item as it lies in a commit, ``matching`` compares it with a target, ``plans`` says which leaves are
read into which memory, ``reading`` reads them, ``filling`` puts the rest in place; ``load`` is all of it.
"""
