%% A minimal ETS semaphore: one ets:update_counter for acquire and one for release. It does not record holders, so
%% permits of a dead process are lost.
%%
%% It counts correctly as long as the limit does not change. `{2, 1, Max, Max + 1}' alone would also detect a full key,
%% but leaves a mark above the limit that no release removes. Therefore one call runs two operations on the row, and the
%% first returns the count before. The alternative is to count up with a single operation and to undo it above the
%% limit. Its acquire is cheaper, but its refusal is more expensive, and it can cause a wrong refusal of another caller.
%%
%% The code uses the table's reference, because each call with a name looks the name up under a lock shared by all
%% schedulers. With `write_concurrency', a call takes the lock of the row and the lock of the table. Without it, a
%% single process would be much faster, but concurrent processes would wait for each other, whatever their keys.
-module(bench_counters).

-export([start/0, acquire/3, release/3]).

-spec start() -> ok.
start() ->
    Options = [public, set, {write_concurrency, true}, {read_concurrency, true}],
    persistent_term:put(?MODULE, ets:new(?MODULE, Options)).

-spec acquire(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) ->
    {acquired, pos_integer()} | full.
acquire(Key, MaxPer, Buckets) ->
    Max = MaxPer * Buckets,
    case ets:update_counter(persistent_term:get(?MODULE), Key, [{2, 0}, {2, 1, Max, Max}], {Key, 0}) of
        [Out, Out] -> full;
        [_, Out] -> {acquired, Out}
    end.

-spec release(Key :: term(), MaxPer :: non_neg_integer(), Buckets :: non_neg_integer()) -> ok.
release(Key, _MaxPer, _Buckets) ->
    _ = ets:update_counter(persistent_term:get(?MODULE), Key, {2, -1, 0, 0}),
    ok.
