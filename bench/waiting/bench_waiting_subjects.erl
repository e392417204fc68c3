%% The subjects of the waiting benchmark: resources with a number of permits, for which callers wait.
-module(bench_waiting_subjects).

-export([present/0, poolboy/0, open/2, close/1, acquire/1, release/2, await_waiting/2, spin/1]).
%% Called by poolboy.
-export([start_link/1]).

-export_type([place/0, permit/0]).

-type place() :: {ours, Key :: term(), Permits :: pos_integer()} | {poolboy, pid()} | none.
-type permit() :: term().

%% Longer than any wait of a benchmark. All subjects get a timeout, because it costs a timer.
-define(TIMEOUT_MS, 60000).
%% The field of poolboy's state that is the queue of its callers (poolboy 1.5). No function returns it.
-define(POOLBOY_WAITING, 4).

%% Without `none'. poolboy is left out where it is not installed.
-spec present() -> [bench_results:subject(), ...].
present() ->
    bench_builds:ours() ++ [poolboy || poolboy() =/= none].

-spec poolboy() -> Version :: string() | none.
poolboy() ->
    case application:load(poolboy) of
        {error, {already_loaded, poolboy}} -> version();
        ok -> version();
        {error, _} -> none
    end.

version() ->
    {ok, Version} = application:get_key(poolboy, vsn),
    Version.

%% `none' has no limit: what the harness does without a subject.
-spec open(bench_results:subject(), Permits :: pos_integer()) -> place().
open(poolboy, Permits) ->
    {ok, Pool} = poolboy:start_link([{worker_module, ?MODULE}, {size, Permits}, {max_overflow, 0}], []),
    {poolboy, Pool};
open(none, _Permits) ->
    none;
open(_Ours, Permits) ->
    _ = whereis(canal_lock) =/= undefined orelse canal_lock:start_link(1),
    {ours, {?MODULE, erlang:unique_integer()}, Permits}.

%% A worker of poolboy that does nothing: only its pid is needed, as a permit.
-spec start_link(term()) -> {ok, pid()}.
start_link(_) ->
    {ok, spawn_link(fun() -> receive after infinity -> ok end end)}.

%% Raises if a caller still waits.
-spec close(place()) -> ok.
close({ours, Key, _} = Place) ->
    ok = test_await:value(0, fun() -> canal_lock:count(Key) end),
    0 = waiting(Place),
    ok;
close({poolboy, Pool} = Place) ->
    0 = waiting(Place),
    poolboy:stop(Pool);
close(none) ->
    ok.

-spec acquire(place()) -> permit().
acquire({ours, Key, Permits}) ->
    {acquired, _} = canal_lock:acquire(Key, Permits, 1, ?TIMEOUT_MS),
    Key;
acquire({poolboy, Pool}) ->
    poolboy:checkout(Pool, true, ?TIMEOUT_MS);
acquire(none) ->
    none.

-spec release(place(), permit()) -> ok.
release({ours, Key, _}, Key) -> canal_lock:release(Key);
release({poolboy, Pool}, Worker) -> poolboy:checkin(Pool, Worker);
release(none, none) -> ok.

%% The number of callers that wait.
waiting({ours, Key, _}) -> canal_lock:waiting(Key);
waiting({poolboy, Pool}) -> queue:len(element(?POOLBOY_WAITING, sys:get_state(Pool, infinity)));
waiting(none) -> 0.

%% Lets other processes run in between.
-spec await_waiting(place(), pos_integer()) -> ok.
await_waiting(Place, Count) ->
    case waiting(Place) of
        Count ->
            ok;
        _ ->
            true = erlang:yield(),
            await_waiting(Place, Count)
    end.

%% Reads a clock that takes no lock. erlang:monotonic_time/0 takes one, which spinning schedulers would contend for.
-spec spin(Ns :: pos_integer()) -> ok.
spin(Ns) ->
    spin_until(os:perf_counter() + erlang:convert_time_unit(Ns, nanosecond, perf_counter)).

spin_until(End) ->
    case os:perf_counter() < End of
        true -> spin_until(End);
        false -> ok
    end.
