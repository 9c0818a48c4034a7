"""Every number that matters, each with its reason.

Constants marked *format* are part of the on-disk format: ``docs/format.md`` states them and a test compares.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- format: cuts -----------------------------------------------------------------------------------------------

MAX_CHUNK_BYTES: Final = 4 * MIB
"""*format* Largest chunk. Fixed, so that stores dedup with each other; big enough that per-object cost vanishes."""

RANK_GRID: Final = (2, 4, 8)
"""*format* World sizes whose ``torch.chunk`` boundaries along dim 0 are cut points, so that they share chunks."""

MIN_GRID_PART_BYTES: Final = 512 * KIB
"""*format* A world size is left out of the grid when it would make a part smaller than this."""

MAX_INLINE_BYTES: Final = 256
"""*format* Tensors up to this size sit in the tree: Adam's thousands of ``step`` scalars must not become objects."""

# --- format: trees ----------------------------------------------------------------------------------------------

LEAF_MIN_BYTES: Final = 32 * KIB
"""*format* A leaf of a tree is closed at a name boundary only beyond this size."""

LEAF_MAX_BYTES: Final = 128 * KIB
"""*format* A leaf of a tree is closed in any case once it has reached this size."""

LEAF_BOUNDARY_MODULUS: Final = 256
"""*format* A name whose hash is 0 modulo this ends a leaf: with ~150 B an entry leaves come to ~64 KiB."""

MAX_INLINE_VALUE_BYTES: Final = 16 * KIB
"""*format* Encoded values beyond this size are cut into chunks instead of sitting in the tree."""

MAX_NESTING: Final = 128
"""*format* Deepest nesting of canonical CBOR that is written or read: bounds recursion on hostile input."""

MAX_VALUE_NESTING: Final = 36
"""*format* Deepest nesting of containers in one value. A mapping takes three levels of CBOR, a tree around it few."""

MAX_NAME_BYTES: Final = 4096
"""*format* Longest tensor name (UTF-8 bytes)."""

MIN_SCALE_EXPONENT: Final = -100
MAX_SCALE_EXPONENT: Final = 1016
"""*format* Least and largest exponent of the power of two that a cast to a float of one byte divides by. The least
keeps its inverse finite in float32, and nobody misses what is below 2⁻¹⁰⁰; the largest brings any float64 within
reach."""

MIN_SCALED_ROW_ELEMENTS: Final = 64
"""Least elements of a row that has a scale of its own: two bytes for each sit in the tree, 3 % of such a row."""

MAX_PIECES: Final = 4096
"""*format* Most pieces of one tensor: bounds what a reader spends on checking that they tile it."""

MAX_TREE_BYTES: Final = 64 * MIB
"""Largest raw tree or commit object a reader will allocate for."""

MAX_TREE_NODES: Final = 2_500_000
"""*format* Most items of CBOR in one tree: an empty list takes a byte there and 70 in memory. 8 TiB are 2 M chunks."""

MAX_DIMENSIONS: Final = 1024
"""*format* Most dimensions of a tensor, far more than any library has: multiplying a million would take hours."""

# --- format: delta chains ---------------------------------------------------------------------------------------

MAX_CHAIN_DEPTH: Final = 64
"""*format* Readers and ``publish`` refuse deeper delta chains."""

SAVE_CHAIN_DEPTH: Final = 4
"""Deepest chain a save makes: bounds what a restore has to decode."""

DELTA_KEEP_RATIO: Final = 0.95
"""A delta is kept only if its sampled size is at most this share of the best base-free encoding's: a read pays for its
base too. At 0.9, saves 100 steps apart come out 1.4 % larger; at 1, nothing more is gained."""

OLDER_BASE_SHARE: Final = 1 / 32
"""What reading an older base counts when a chain begins anew, as a share of the chunk. At an eighth, thirty saves of a
table of which 1 % changes take 15 to 35 % more, for a tenth less time; at nothing, long runs take more of both."""

SMALL_DELTA_SHARE: Final = 1 / 8
"""Most that a delta may take of a chunk for its chain to begin anew with another instead of a full chunk. States that
are trained as a whole take four times as much one step apart: no older base is read for them."""

# --- codec ------------------------------------------------------------------------------------------------------

SAMPLE_WORDS: Final = 4096
"""Words the codec looks at to choose an encoding. Half as many turn down deltas that pay; more change nothing."""

MIN_PLANE_GAIN: Final = 0.08
"""A byte plane is compressed only if that saves this share of it: less is not worth zstd's time, both ways."""

MIN_GROUPED_GAIN: Final = 0.03
"""Groups must save this share of a chunk: finding every byte's place takes a third of the speed, both ways."""

MIN_MOVED_GAIN: Final = 0.01
"""What each plane put in group order must save of its chunk: once places are known, moving a plane takes less."""

MAX_GROUPED_WIDTH_BYTES: Final = 2
"""Wider words are never put in group order: all of a state, that saves one percent, for a quarter of the speed."""

MIN_GROUP_BYTES: Final = 16 * KIB
"""Neighbouring groups share a zstd block until it has this size: a block's code table costs ~60 bytes and 10 µs."""

KERNEL_LOAD_BYTES: Final = 4 * MIB
"""Work before a process loads compiled kernels: up to here NumPy takes no longer than loading them (40 ms)."""

KERNEL_PROBE_SECONDS: Final = 1.0
"""How often a process looks whether the compiled kernels have become ready."""

# --- saving -----------------------------------------------------------------------------------------------------

MAX_THREADS: Final = 1024
"""More threads than any machine has CPUs: a number beyond this is a mistake."""

GROUP_BYTES: Final = 4 * MIB
"""Chunks of a save are worked on in groups of this size: what is done once for a group then takes a hundredth of it."""

GROUP_CHUNKS: Final = 128
"""Most chunks in a group, which may be very small: their number is what they cost, and threads should end together."""

# --- packs ------------------------------------------------------------------------------------------------------

MAX_PACK_BYTES: Final = 1 * GIB
"""A save starts another pack beyond this size: bounds what a repack must rewrite at a time."""

WRITE_BLOCK_BYTES: Final = 4 * MIB
"""Pack bytes go out in page-aligned blocks of this size (O_DIRECT where the file system takes it). From 2 MiB on,
larger ones are no faster."""

WRITE_BLOCK_COUNT: Final = 3
"""Blocks of one file: one is filled while one is written, and one more evens out what takes longer now and then."""

PAGE_BYTES: Final = 4096
"""Alignment of O_DIRECT buffers, offsets and lengths."""

MAX_OPEN_PACKS: Final = 64
"""Packs a reader keeps open: far below the 1,024 descriptors a process usually may have."""

CHECKED_OPEN_PACKS: Final = 4
"""Of these, those looked at whenever another is opened, for whether they were removed: the ones that were least
recently used, as what was removed is not read any more. To look at all of them would take longer than opening one."""

# --- arenas -----------------------------------------------------------------------------------------------------

POPULATE_STRIDE_BYTES: Final = 64 * MIB
"""Pages of an arena are made this many bytes at a time: a signal waits for one stride, some 50 ms."""

COPY_RUN_BYTES: Final = 8 * MIB
"""A task of the threads that copy a state: big enough to be worth waking one, small enough that they end together."""

PREFAULT_BYTES: Final = 4 * MIB
"""Pages made at a time ahead of a save (3 ms): mapping memory, as training does all the time, has to wait for it."""

WORKER_BYTES: Final = 192 * MIB
"""What saving takes beside its arenas, as counted against a bound: 66 MB of the worker's own and 24 MB of the trainer's
were measured with two threads; each further one holds a chunk, its base and its encoding (about 8 MB)."""

WITNESS_WORDS: Final = 64
"""Words looked at in each tensor that is copied while training goes on: 300 tensors in 0.7 ms."""

HELD_COPY_BYTES: Final = 16 * KIB
"""Copies up to this size keep the GIL: giving it up and fetching it back takes longer, and others wait for both."""

# --- loads ------------------------------------------------------------------------------------------------------

KEPT_CHUNKS_BYTES: Final = 64 * MIB
"""Decoded chunks that a load keeps because others are deltas against them too. They lie close together in packs."""

STREAMED_CHUNK_BYTES: Final = 256 * KIB
"""From here on a chunk goes to its tensor past the caches: it would not fit beside what it is made of."""

READ_RUN_BYTES: Final = 512 * KIB
"""Small chunks that lie next to each other are read at once up to this size, which stays in a core's own cache."""

# --- diff and merge ---------------------------------------------------------------------------------------------

DIFF_WINDOW_BYTES: Final = 32 * MIB
"""Read at once to compare two commits: a chunk of each for four threads. More costs memory only."""

ARITHMETIC_ELEMENTS: Final = 64 * KIB
"""Elements that are computed with at a time: as float64 a few such arrays stay in the second-level cache."""

MERGE_PROBLEMS_SHOWN: Final = 10
"""Most reasons an error lists in its message why commits cannot be merged; its details hold them all."""

DIFF_NUMBERS_COUNT: Final = 16
"""Longest list of numbers in a value that is compared one by one; a permutation of a million is one difference."""

DIFF_CHILDREN_COUNT: Final = 4096
"""Longest list of lists or mappings that is: an optimizer may have hundreds of groups."""

LAST_GOOD_COMMITS: Final = 100
"""Commits that a resume tries, newest first, before it gives up: beyond this, what they share is what is damaged."""

# --- the worker process -----------------------------------------------------------------------------------------

WORKER_TAIL_BYTES: Final = 4 * KIB
"""What is told of a worker's last words: a traceback fits."""

WORKER_STARTS: Final = 2
"""Workers in a row that end before they are ready, after which a run saves without: one may have had bad luck."""

UNDERWAY_WAIT_SECONDS: Final = 60.0
"""How long a run that takes up a branch waits for a save that is under way there: longer than any but a hanging one."""

UNDERWAY_PAUSE_SECONDS: Final = 0.02
"""How often it looks."""

TIDY_SAVES: Final = 8
"""Saves that follow each other without a pause before the worker drops what a policy does not keep all the same."""

AUTO_GC_BYTES: Final = 64 * MIB
"""Dropped by a policy before the worker runs gc by itself: less is not worth the reading."""

AUTO_GC_SHARE: Final = 0.25
"""And what share of the store that has to be: gc looks at all that stays, so a store that keeps much does so seldom."""

# --- refs -------------------------------------------------------------------------------------------------------

MAX_REF_NAME_BYTES: Final = 200
"""*format* Longest ref name without its kind (UTF-8 bytes): a name and its log must each fit a file name (255)."""

REFLOG_TAIL_BYTES: Final = 64 * KIB
"""What a writer reads of a reflog to check its end; a long run's log is many MB."""

REFLOG_EXPIRY_NS: Final = 90 * 24 * 3600 * 1_000_000_000
"""How long a line of a reflog keeps what it names, as in git: by then it is missed if it was reset or deleted by
mistake."""

# --- revisions --------------------------------------------------------------------------------------------------

MIN_PREFIX_DIGITS: Final = 4
"""Fewest hex digits that stand for a commit, as in git."""

CANDIDATES_SHOWN: Final = 10
"""Most commits an error about an ambiguous prefix lists in its message; its details hold them all."""

# --- index ------------------------------------------------------------------------------------------------------

INDEX_MAP_BYTES: Final = 64 * GIB
"""LMDB's map from the start: sparse, so it costs address space only, and it hardly ever has to grow."""

INDEX_MAP_GROWTH: Final = 2
"""A map that is full is made this many times as large."""

INDEX_READERS: Final = 512
"""Places in LMDB's table of readers, each taken for the microseconds of one look-up by one thread of any process."""

INDEX_LOCK_BYTES: Final = 64 * (INDEX_READERS + 64)
"""What LMDB's lock file is made with: a cache line a reader, and room for its head."""

INDEX_ATTEMPTS: Final = 100
"""How often a transaction of the index is begun anew after what passes by: a full map or table, another's rebuild."""

INDEX_PAUSE_SECONDS: Final = 0.01
"""How long a look-up waits when the table of readers is full of living ones."""

INDEX_WALK_NS: Final = 24 * 3600 * 1_000_000_000
"""How long a walk of the index's pages counts: flipped bits show within a day, and a day pays for one walk."""

# --- space ------------------------------------------------------------------------------------------------------

BALLAST_BYTES: Final = 4 * MIB
"""Preallocated file that gc gives up first on a full disk."""

BALLAST_PIECE_BYTES: Final = 1 * MIB
"""What is given up of it at a time: what to prune has to be written down before gc can begin, and gc needs some too."""

SWEEP_NS: Final = 24 * 3600 * 1_000_000_000
"""How often opening a store looks through the names of all packs for temporaries that nobody makes any more."""

# --- fsck -------------------------------------------------------------------------------------------------------

CLOCK_SKEW_NS: Final = 24 * 3600 * 1_000_000_000
"""How far in the future a commit may be dated before a check mentions it: clocks of machines differ by hours."""

# --- gc and repack ----------------------------------------------------------------------------------------------

SWEEP_KEYS: Final = 1000
"""Copies that one transaction of the index removes or adds: savers wait for it, 50 ms at most."""

SWEEP_PAUSE_SECONDS: Final = 0.001
"""What gc waits between transactions: LMDB's lock goes to whoever asks next, and that should be a saver who waits."""

COMPACT_SHARE: Final = 0.5
"""gc writes anew what a pack holds if that takes less than this share of it: each byte is then moved, over the years,
as often as one is freed, and a store takes at most twice what is needed."""

GC_ATTEMPTS: Final = 3
"""How often gc looks anew because the index did not tell the truth about what is needed."""

REWRITE_WINDOW_BYTES: Final = 64 * MIB
"""Raw bytes of objects that are read, and perhaps encoded anew, before they are appended to a new pack."""

REWRITE_PACK_BYTES: Final = 256 * MIB
"""Packs are replaced by so much at a time, which is the space it takes meanwhile, and new ones come out no larger."""

SMALL_PACK_BYTES: Final = 64 * MIB
"""Packs below this size are put together: a quarter of the size aimed at, so that few bytes are moved often."""

FINAL_REPACK_BYTES: Final = 4096 * MIB
"""The last save of a run also puts small packs together, in stores up to this size: seconds, not minutes."""

HOLLOW_PACK_RATIO: Final = 0.9
"""A pack of which less than this share is needed is written anew along with small ones."""

REPACK_CHAIN_DEPTH: Final = 16
"""Deepest chain that a repack for size makes: beyond it little is gained, and an old commit still loads."""

REPACK_KEEP_RATIO: Final = 0.97
"""A place's chunks are stored anew only if they come to this share of what they take: what sampling may err by."""

REPACK_LINE_CHUNKS: Final = 512
"""Chunks of one place that are planned together; their samples take 8 MiB (float32), by threads."""

REPACK_HUBS: Final = 24
"""Tips, forks and beginnings of one place that are each compared with all: 24 take 30 ms."""

# --- retries ----------------------------------------------------------------------------------------------------

LOOKUP_ATTEMPTS: Final = 3
"""How often a read looks an object up again after its pack went away (gc or repack moved it)."""

STORE_ATTEMPTS: Final = 3
"""How often a save stores its objects anew because gc swept something it had found stored."""

# --- remotes ------------------------------------------------------------------------------------------------------

MAX_KEY_BYTES: Final = 1000
"""*format* Longest key of a remote, with its prefix: S3 allows 1,024 bytes."""

IDX_VERSION: Final = 1
"""*format* Version of the files beside a remote's packs."""

REMOTE_THREADS: Final = 8
"""Requests for small things that are under way at once: each takes some 30 ms, of which nothing is work here."""

MAX_REMOTE_SETTING_BYTES: Final = 64 * KIB
"""Longest ``format`` or ref of a remote that is read: they take a few hundred bytes."""

MAX_REMOTE_REF_BYTES: Final = 256
"""Longest ref of a remote that is read: they have 65 bytes, and whoever fetches remembers all of them."""

MAX_REMOTE_REFS: Final = 50_000
"""Most refs of a remote, of all stores together, and most stores with absence records: each takes a request."""

MAX_IDX_OBJECTS: Final = 524_288
"""Most objects of a remote's pack, eight times what a push puts into one: each takes half a kilobyte of memory."""

MAX_REMOTE_RECORDS_BYTES: Final = 64 * MIB
"""Longest ``absent/<store>`` or ``gc/condemned`` that is read: records of 500,000 commits or packs."""

MAX_IDX_BYTES: Final = 160 * MIB
"""Longest idx that is read: the table and the commits of the largest pack that a push makes."""

PUSH_PACK_BYTES: Final = 64 * MIB
"""A push starts another pack beyond this size: what a broken connection may cost, for two requests a pack."""

PUSH_PACK_OBJECTS: Final = 65_536
"""And beyond so many objects, whose table takes 6.5 MB."""

PUSH_PACKS_AT_ONCE: Final = 2
"""Packs that go out at once: while one ends, with three requests that each wait for the last, another keeps the line
busy. They share the parts that are in memory."""

PUSH_READ_BYTES: Final = 4 * MIB
"""Read at once from a local pack while it is sent: a chunk, or many small objects that lie side by side."""

PUSH_BOUNDARY_TIPS: Final = 64
"""Tips of a remote, the newest, whose trees are looked through for what need not be sent, beside the parents of what is
new: others seldom share what those do not."""

PUSH_OLDER_COMMITS: Final = 256
"""Commits before those, the newest first, whose trees are looked through for bases that the remote has: a chain that
begins anew with small deltas seldom goes back further. It ends as soon as all are found."""

PUSH_ATTEMPTS: Final = 4
"""How often a push plans anew because what it was about to send changed, or what it relied on was condemned."""

# --- storages of remotes -----------------------------------------------------------------------------------------

REMOTE_ATTEMPTS: Final = 8
"""How often a request is made that fails for a passing reason: with the pauses below it then took some 15 s."""

REMOTE_PAUSE_SECONDS: Final = 0.1
"""The pause before a request is made again, doubled each time and shortened at random, so that many do not meet."""

REMOTE_MAX_PAUSE_SECONDS: Final = 20.0
"""The longest of these pauses, unless the server asks for more."""

REMOTE_RETRY_AFTER_SECONDS: Final = 60.0
"""The longest pause that a server may ask for: it might ask for a year."""

REMOTE_CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to be made."""

REMOTE_READ_SECONDS: Final = 60.0
"""How long a server may say nothing: completing a large upload takes some of them half a minute."""

REMOTE_CONNECTIONS: Final = 32
"""Connections that are kept open: as many as threads may transfer at once."""

UPLOAD_PART_BYTES: Final = 16 * MIB
"""What is longer goes out in parts of this size, at least 5 MiB by S3's rules: what is sent anew if one of them fails.
Half of it would take twice the requests, which are paid for."""

UPLOAD_THREADS: Final = 4
"""Parts of all uploads that go out at once: AWS gives each connection 85 MB/s. To a server on the same
machine 4, 8 and 10 are alike, and each takes the memory of a part and of what boto3 makes of it."""

UPLOAD_PARTS_HELD: Final = UPLOAD_THREADS
"""Parts that are in memory: reading the next one takes a hundredth of the time that sending it does."""

UPLOAD_ATTEMPTS: Final = 3
"""How often an upload is begun anew, because the server forgot the one it had begun, or credentials expired."""

DOWNLOAD_STEP_BYTES: Final = 256 * KIB
"""A body is read so much at a time: it stays in a core's cache until it is copied to where it belongs."""

DOWNLOAD_ATTEMPTS: Final = 64
"""How often a body that is cut is asked for from there. What brings nothing is bounded by REMOTE_ATTEMPTS."""

MAX_SKIPPED_BYTES: Final = 64 * MIB
"""What is read and dropped of a server that sends a whole pack for a range of it."""

MAX_ANSWER_BYTES: Final = 4 * MIB
"""Longest listing or error of a server that is read: a thousand keys of the longest kind, and as much again in memory
a few times over."""

LIST_PAGES: Final = 10_000
"""Most pages of a listing, a thousand keys each: a hostile server sends them for ever."""

DELETE_KEYS: Final = 1000
"""Keys that one request deletes: S3 takes no more."""

PROBE_RACERS: Final = 8
"""Writers that race for a key to see whether a server lets exactly one of them win."""

PROBE_ROUNDS: Final = 3
"""How often they race, to make the key and to replace it each: Swift lets one to seven of eight make a key."""

VERSION_BY_CONTENT_BYTES: Final = 4 * KIB
"""Files of a remote directory up to this size have a hash as their version: refs may change within a clock's tick."""

FETCH_GAP_BYTES: Final = 64 * KIB
"""Bytes that nobody wants and that are read all the same, so that one request does: less than it takes to ask twice."""

FETCH_RUN_BYTES: Final = 8 * MIB
"""Read with one request. S3 gives a connection about 85 MB/s: a tenth of a second, of which asking takes a third."""

FETCH_WINDOW_BYTES: Final = 32 * MIB
"""Stored bytes that are checked and written at a time, into a pack of their own. Thrice as much is in memory, since one
window is stored and another read meanwhile; with twice that a clone took no less time."""

FETCH_KEPT_BYTES: Final = 16 * MIB
"""Decoded bases that a fetch keeps. Most deltas of a window follow their base in it, and need none of these."""

FETCH_WINDOW_OBJECTS: Final = 16_384
"""Most objects of a window: what is killed in between has to be fetched again, however small it is."""

FETCH_THREADS: Final = 8
"""Requests for content that are under way at once: together they fill a line of 5 Gbit/s."""

FETCH_ATTEMPTS: Final = 4
"""How often a fetch looks again for what it lacks: other copies of damaged objects, packs that were replaced."""

FETCH_COMMITS: Final = 64
"""Commits that are entered in one transaction of the index, which looks for all that they need."""

PUSH_BACKLOG: Final = 2
"""Background pushes that may be due at once, the one under way among them, before the next save waits."""

PUSH_STALL_SECONDS: Final = 10.0
"""How long a save waits for a push that does not get on: in an outage saves go on, and requests are tried longer."""

PUSH_TELL_SECONDS: Final = 1.0
"""How often a push that gets on says so."""

PUSH_YIELD_SECONDS: Final = 5.0
"""How long a push makes way for a save: servers hang up on who is silent for some 20 s."""

# --- gc and checks of remotes -------------------------------------------------------------------------------------

REMOTE_GRACE_SECONDS: Final = 24 * 3600
"""How long a remote's gc leaves what is new, and waits between condemning a pack and deleting it: no push takes a day
from looking at the list of condemned packs to moving its ref."""

REMOTE_GC_ATTEMPTS: Final = 5
"""How often a remote's gc looks anew because refs or the list of condemned packs changed while it looked."""

MAX_CONDEMNED_PACKS: Final = 200_000
"""Most packs that are condemned at once, 100 bytes each: more wait for a later run."""

MAX_REMOTE_KEYS: Final = 5_000_000
"""Most keys of a remote: packs of 64 MiB would come to 150 TB. A hostile server lists them for ever."""

CHECK_RUN_BYTES: Final = 8 * MIB
"""What a full check of a remote reads at once, in each thread."""

# --- ranks --------------------------------------------------------------------------------------------------------

RANK_TIMEOUT_SECONDS: Final = 1800.0
"""How long a rank waits for another: longer than any of them takes to store its part, shorter than a night. One that
ended is noticed at once, by its connection."""

RANK_ATTEMPTS: Final = 2
"""How often ranks store their parts of one save: once more, in full, if what they counted on was swept meanwhile."""

MAX_RANK_MESSAGE_BYTES: Final = 1024 * MIB
"""Longest message between ranks: a million tensors' names and boxes take a tenth of it."""
