%% What differs between the subjects outside of the timed loops.
-module(bench_subjects).

-export([start/1, module/1, key/2, settle/1, memory/1]).

-type subject() :: bench_cases:subject().

-spec start(subject()) -> ok.
start(Subject) when Subject =:= ours; Subject =:= ets ->
    {ok, _} = (module(Subject)):start_link(10),
    ok;
start(floor) ->
    {module, _} = code:ensure_loaded(bench_floor_nif),
    ok;
start(atomics) ->
    ok.

-spec module(subject()) -> module().
module(ours) -> canal_lock;
module(ets) -> canal_lock_ets.

-spec key(subject(), Key :: term()) -> term().
key(atomics, _Key) -> atomics:new(1, []);
key(_, Key) -> Key.

%% Waits until the manager has handled what this process has sent it.
-spec settle(subject()) -> ok.
settle(ets) ->
    _ = sys:get_state(canal_lock_ets),
    ok;
settle(ours) ->
    ok.

%% The subject's own account of its memory, in bytes.
-spec memory(subject()) -> [{bench_cases:op(), non_neg_integer()}].
memory(ours) ->
    #{memory := Bytes} = canal_lock:info(),
    [{table, Bytes}];
memory(ets) ->
    [Public, Private] = [
        ets:info(Table, memory) * erlang:system_info(wordsize)
     || Table <- [canal_lock_ets, canal_lock_ets_monitors]
    ],
    [{public_table, Public}, {table, Public + Private}].
