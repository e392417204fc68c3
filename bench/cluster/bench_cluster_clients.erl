%% Measures what clients cost the members: five members, and the same five with 16 clients that lock instead of them.
%%
%% The loops of a case first lock as fast as they can (`peak'). Then they begin their locks at fixed times, so that
%% there are half as many (`half'): at the peak, a longer wait only shows that there are more loops. Each lock has a
%% name of its own. The figures are medians over the rounds, in which the cases alternate.
-module(bench_cluster_clients).

-export([main/0]).
%% Called on a node.
-export([load/3]).

-define(MEMBERS, 5).
-define(CLIENTS, 16).
-define(LOOPS, 5).
-define(ROUNDS, 5).
-define(WINDOW_MS, 4000).
%% From the start of the loops to the first reading of processor times, and from the last one to their end.
-define(MARGIN_MS, 500).
-define(TIMEOUT_MS, 60_000).

-type sample() :: #{locks := float(), p50 := float(), p99 := float(), busiest := float(), per_lock := float()}.

-spec main() -> no_return().
main() ->
    {Members, Clients} = lists:split(?MEMBERS, bench_cluster_nodes:start(?MEMBERS + ?CLIENTS)),
    ok = bench_cluster_nodes:start_with_clients(Members, Clients),
    Cases = [{"5 members lock", Members}, {"16 clients lock", Clients}],
    Rounds = [[{Title, pair(Lockers, Members)} || {Title, Lockers} <- Cases] || _ <- lists:seq(1, ?ROUNDS)],
    io:format("~-18ts~-6ts~10ts~12ts~12ts~22ts~22ts~n", [
        "", "", "locks/s", "p50 ms", "p99 ms", "busiest member, cores", "the same, us/lock"
    ]),
    lists:foreach(fun({Title, Load}) ->
        Of = [maps:get(Load, Pair) || Round <- Rounds, {Case, Pair} <- Round, Case =:= Title],
        Median = fun(What) -> median([maps:get(What, Sample) || Sample <- Of]) end,
        io:format("~-18ts~-6ts~10b~12.2f~12.2f~22.2f~22.1f~n", [
            Title, Load, round(Median(locks)), Median(p50), Median(p99), Median(busiest), Median(per_lock)
        ])
    end, [{Title, Load} || {Title, _} <- Cases, Load <- [peak, half]]),
    halt(0).

pair(Lockers, Members) ->
    Peak = #{locks := Rate} = sample(Lockers, Members, 0),
    Interval_us = round(2 * 1_000_000 * ?LOOPS * length(Lockers) / Rate),
    #{peak => Peak, half => sample(Lockers, Members, Interval_us)}.

-spec sample([test_nodes:a_node()], [test_nodes:a_node()], non_neg_integer()) -> sample().
sample(Lockers, Members, Interval_us) ->
    {_, Monitor} = spawn_monitor(fun() ->
        exit(test_nodes:call_all(Lockers, fun() -> ?MODULE:load(?LOOPS, Interval_us, ?WINDOW_MS) end))
    end),
    ok = timer:sleep(?MARGIN_MS),
    First = cpu(Members),
    ok = timer:sleep(?WINDOW_MS - 2 * ?MARGIN_MS),
    Last = cpu(Members),
    Filled = receive {'DOWN', Monitor, process, _, Waits} when is_list(Waits) -> Waits end,
    All = bench_cluster_waits:all(Filled),
    Count = bench_cluster_waits:count(All),
    Rate = 1000 * Count / ?WINDOW_MS,
    Busiest = lists:max(lists:zipwith(fun(One, Other) -> Other - One end, First, Last)) /
        (1.0e6 * (?WINDOW_MS - 2 * ?MARGIN_MS)),
    Percentile_ms = fun(Percent) -> bench_cluster_waits:percentile(Percent, All) / 1.0e6 end,
    #{
        locks => Rate, p50 => Percentile_ms(50), p99 => Percentile_ms(99),
        busiest => Busiest, per_lock => 1.0e6 * Busiest / Rate
    }.

cpu(Nodes) ->
    [test_nodes:call(Node, fun bench_cluster_nodes:cpu_ns/0) || Node <- Nodes].

median(Values) ->
    lists:nth((length(Values) + 1) div 2, lists:sort(Values)).

%% The waits of the locks that `Loops' processes of this node get in this time. With an interval, each process begins a
%% lock per interval.
-spec load(pos_integer(), non_neg_integer(), pos_integer()) -> bench_cluster_waits:filled().
load(Loops, Interval_us, Window_ms) ->
    Waits = bench_cluster_waits:new(),
    End_us = now_us() + 1000 * Window_ms,
    Processes = [
        spawn_monitor(fun() ->
            loop(Number, 0, now_us() + rand:uniform(Interval_us + 1), Interval_us, End_us, Waits)
        end)
     || Number <- lists:seq(1, Loops)
    ],
    [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Processes],
    bench_cluster_waits:filled(Waits).

loop(Number, Turn, Next_us, Interval_us, End_us, Waits) ->
    ok = timer:sleep(max(0, (Next_us - now_us()) div 1000)),
    Begin_us = now_us(),
    case Begin_us < End_us of
        true ->
            {ok, Lock} = canal_lock_quorum:lock({node(), Number, Turn}, ?TIMEOUT_MS),
            ok = bench_cluster_waits:note(Waits, 1000 * (now_us() - Begin_us)),
            ok = canal_lock_quorum:unlock_async(Lock),
            %% A late lock is not made up for by more than one other.
            loop(Number, Turn + 1, max(Next_us + Interval_us, Begin_us - Interval_us), Interval_us, End_us, Waits);
        false ->
            ok
    end.

now_us() ->
    erlang:monotonic_time(microsecond).
