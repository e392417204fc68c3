%% Measures the life of a process that acquires a permit and dies with it. "no process has waited": no process that is
%% alive has ever waited or been given a permit, so the table has no record of that kind. "one has waited": another
%% process has, and a death looks for a record of its own process, too.
%%
%% All processes run on one scheduler, one after the other.
%%
%% Options of the mode: death_rounds; deaths (of each variant and round).
-module(bench_waiting_death).

-export([measure/2]).

-define(KEY, {?MODULE, died}).
-define(GIVEN, {?MODULE, given}).

-spec measure(map(), fun((iodata()) -> ok)) -> bench_results:results().
measure(#{death_rounds := Rounds, deaths := Deaths}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("deaths, round ~b of ~b", [Round, Rounds])),
        [
            {{death, Variant, none, ours, per_life}, sample(Variant, Deaths) / Deaths}
         || Variant <- bench_rounds:shuffle(["no process has waited", "one has waited"])
        ]
    end).

sample("no process has waited", Deaths) ->
    lives(Deaths);
sample("one has waited", Deaths) ->
    Other = spawn_monitor(fun() -> receive after infinity -> ok end end),
    {acquired, _} = canal_lock:acquire(?GIVEN, 1, 1),
    ok = canal_lock:give(?GIVEN, element(1, Other)),
    Ns = lives(Deaths),
    ok = bench_process:kill([Other]),
    ok = bench_records:await(0, fun() -> canal_lock:count(?GIVEN) end),
    Ns.

lives(Deaths) ->
    bench_process:result([{scheduler, 1}], fun() ->
        ok = lives_here(Deaths div 10),
        Start = erlang:monotonic_time(),
        ok = lives_here(Deaths),
        Ns = erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond),
        ok = bench_records:await(0, fun() -> canal_lock:count(?KEY) end),
        Ns
    end).

lives_here(0) ->
    ok;
lives_here(Count) ->
    Child = spawn_opt(fun() -> {acquired, _} = canal_lock:acquire(?KEY, 1000, 1) end, [monitor, {scheduler, 1}]),
    ok = bench_process:await_exit(Child, normal),
    lives_here(Count - 1).
