"""How ranks agree on the scales of tensors that are stored as floats of one byte: by what is largest on any of them."""

from collections.abc import Callable, Sequence

from store.format.canonical import Node
from store.saving.rankscales import Largest, decode_largest, decode_scales, encode_largest, encode_scales, joined
from store.saving.scales import Scales

from .talk import Talk


def agreed_scales(talk: Talk, find: Callable[[], Sequence[Largest]]) -> Scales:
    """The scales of all ranks' tensors. Collective.

    Args:
        talk: decisions of all ranks.
        find: looks for the largest numbers of this one.

    Raises:
        MoonclipError: what ended ``find`` on any rank, on all ranks.
        RankLost: a rank cannot be reached.
    """

    def answers(said: Sequence[Node]) -> list[Node]:
        return [encode_scales(joined(list(map(decode_largest, said))))] * talk.group.world_size

    return decode_scales(talk.exchange(lambda: encode_largest(find()), answers))
