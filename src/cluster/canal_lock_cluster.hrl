%% The rows of the messages between the allocator and the nodes. They contain states, not differences, so a message that
%% is lost, late or repeated does no harm.

%% The allocator to a node: it has `share' permits of the key from this `number' on, and uses up to `target'. `limit'
%% and `version': the limit in force. `contended': whether the nodes want more than the limit. `declared': the number of
%% the last declaration of the node that the allocator has seen.
-record(set, {
    key :: canal_lock:key(),
    number :: pos_integer(),
    share :: non_neg_integer(),
    target :: non_neg_integer(),
    limit :: non_neg_integer(),
    version :: canal_lock_cluster_ledger:version(),
    contended :: boolean(),
    declared :: non_neg_integer()
}).

%% A node to the allocator: it has seen the row with that `number', and keeps `share' permits of it; the rest is free
%% for other nodes. It uses `in_use', and needs `need' more. `waiting' requests wait; the oldest of them that needs no
%% more than the limit needs `next' in all; 1 if only refused calls need permits. `passed': the capacity of the last
%% call. `declared': that capacity with a number, until the allocator has seen it. `limit' and `version' as it knows
%% them.
-record(have, {
    key :: canal_lock:key(),
    number :: non_neg_integer(),
    share :: non_neg_integer(),
    in_use :: non_neg_integer(),
    need :: non_neg_integer(),
    next :: non_neg_integer(),
    waiting :: non_neg_integer(),
    passed :: non_neg_integer() | none,
    declared :: {pos_integer(), non_neg_integer()} | none,
    limit :: non_neg_integer(),
    version :: canal_lock_cluster_ledger:version() | none
}).
