%% What a bare ETS semaphore pays: a call of ets:update_counter for acquire and another for release, and nothing else.
%% Nobody knows who holds, and what a dead process held is lost.
%%
%% It counts right while the limit stays as it is. `{2, 1, Max, Max + 1}' alone would say as well that the key is full,
%% but leave a mark above the limit that no release takes away; two operations on the row in one call tell what was
%% there before. Who counts up by a single operation and takes it back above the limit has a leaner acquire, and a
%% dearer refusal, which may refuse somebody else for whom there is room.
%%
%% A named table is looked up in each call, under a lock that all schedulers share: so this one goes by its reference,
%% which costs less. With `write_concurrency' a call takes the lock of the row as well as that of the table: a single
%% process would pay far less for a table without, but several would wait for each other, whatever their keys.
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
