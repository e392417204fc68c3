%% The differences between the subjects outside the timed loops. bench/README.md lists the subjects.
-module(bench_subjects).

-export([start/1, module/1, prepare/2, hold/4, acquire_each/4, settle/1]).

-type subject() :: bench_results:subject().

%% Acquires between two synchronizations with the manager of the ETS design, which keep its mailbox short.
-define(SETTLE_EVERY, 1000).
%% Words of an `atomics' array. Only one is used, so that no two counters share a cache line.
-define(WORDS, 32).

-spec start(subject()) -> ok.
start(Subject) when Subject =:= ours; Subject =:= other; Subject =:= ets ->
    {ok, _} = (module(Subject)):start_link(10),
    ok;
start(counters) ->
    bench_counters:start();
%% It uses the table of `ours'.
start(elixir) ->
    {module, _} = code:ensure_loaded(module(elixir)),
    ok;
start(floor) ->
    {module, _} = code:ensure_loaded(bench_floor_nif),
    ok;
start(Subject) when Subject =:= atomics; Subject =:= none ->
    ok.

%% Only of the subjects with acquire/3 and release/3.
-spec module(subject()) -> module().
module(ours) -> canal_lock;
module(other) -> canal_lock;
module(elixir) -> 'Elixir.CanalLock';
module(ets) -> test_original;
module(counters) -> bench_counters.

%% Returns the loops' argument for a key. Uses the key once before, because the ETS design raises if several processes
%% are the first to use a key at the same time.
-spec prepare(subject(), Key :: term()) -> term().
prepare(atomics, _Key) ->
    atomics:new(?WORDS, []);
prepare(Subject, Key) when Subject =:= floor; Subject =:= none ->
    Key;
prepare(Subject, Key) ->
    Module = module(Subject),
    {acquired, _} = Module:acquire(Key, 1, 1),
    ok = Module:release(Key, 1, 1),
    Key.

%% Starts a process for each list. It acquires a permit of each key in the list and lives as long as the caller.
-spec hold(subject(), [[Key :: term()]], MaxPer :: pos_integer(), Buckets :: pos_integer()) -> ok.
hold(Subject, Lists, MaxPer, Buckets) ->
    Parent = self(),
    Hold = fun(Keys) ->
        ok = acquire_each(Subject, Keys, MaxPer, Buckets),
        Parent ! {self(), holding},
        receive after infinity -> ok end
    end,
    Holders = [spawn_link(fun() -> Hold(Keys) end) || Keys <- Lists],
    [receive {Holder, holding} -> ok end || Holder <- Holders],
    ok.

%% Acquires a permit of each key for the caller.
-spec acquire_each(subject(), [Key :: term()], MaxPer :: pos_integer(), Buckets :: pos_integer()) -> ok.
acquire_each(Subject, Keys, MaxPer, Buckets) ->
    acquire_each(Subject, Keys, MaxPer, Buckets, 0).

acquire_each(Subject, [], _MaxPer, _Buckets, _) ->
    settle(Subject);
acquire_each(Subject, Keys, MaxPer, Buckets, ?SETTLE_EVERY) ->
    ok = settle(Subject),
    acquire_each(Subject, Keys, MaxPer, Buckets, 0);
acquire_each(Subject, [Key | Keys], MaxPer, Buckets, Since) ->
    {acquired, _} = acquire(Subject, Key, MaxPer, Buckets),
    acquire_each(Subject, Keys, MaxPer, Buckets, Since + 1).

%% The floor has one counter for all keys, which may already exceed MaxPer.
acquire(floor, Key, _MaxPer, _Buckets) -> bench_floor_nif:floor_acquire(Key, 1000, 1);
acquire(Subject, Key, MaxPer, Buckets) -> (module(Subject)):acquire(Key, MaxPer, Buckets).

%% Waits until the manager has handled all messages of the caller.
-spec settle(subject()) -> ok.
settle(ets) ->
    _ = sys:get_state(test_original, infinity),
    ok;
settle(_) ->
    ok.
