"""The process that stores what a trainer captured: started by :mod:`.client` alone.

client      in the trainer: a thread that hands saves over, one after another, and hears what became of them
process     in the trainer: one worker process, from its start to its end
loop        in the worker: what it does all day
committing  what a save is, in either process
tidying     what it does after a save; collecting: gc between saves
messages    what they say to each other; channel: how; peers: how each notices that the other is gone
"""
