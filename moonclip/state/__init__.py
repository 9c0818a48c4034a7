"""What a person saves, as named entries: tensors, containers and values, and all of them put together again.

``flattening`` is the door; ``walk`` goes over containers, ``leaves`` and ``values`` encode what is no tensor,
``tensors`` describes what is one, ``composites`` take apart what is made of several.
"""
