%% Waits until the subjects have a number of permits in use.
-module(bench_records).

-export([await_permits/3, await/2]).

%% Polls without sleep at first, to see a quick change within microseconds. Then it sleeps between polls, so that
%% waiting does not take a processor from the work that it waits for.
-define(QUICK_POLLS, 1000).
-define(PAUSE_MS, 1).
%% The ETS design needs seconds for 100,000 deaths.
-define(DEADLINE_MS, 120000).

%% Waits until each of these keys has this number of permits in use. All permits are in the first bucket.
-spec await_permits(ours | other | ets, Keys :: [term()], Permits :: non_neg_integer()) -> ok.
await_permits(Subject, Keys, Permits) ->
    lists:foreach(fun(Key) -> await(Permits, fun() -> count(Subject, Key) end) end, Keys).

count(ets, Key) ->
    case ets:lookup(test_original, {Key, 1}) of
        [{_, Count}] -> Count;
        [] -> 0
    end;
count(_, Key) ->
    canal_lock:count(Key).

%% Waits until Ask returns Wanted.
-spec await(Wanted, fun(() -> Wanted | term())) -> ok.
await(Wanted, Ask) ->
    await(Wanted, Ask, ?QUICK_POLLS).

await(Wanted, Ask, 0) ->
    await_long(Wanted, Ask, erlang:monotonic_time(millisecond) + ?DEADLINE_MS);
await(Wanted, Ask, QuickPolls) ->
    case Ask() of
        Wanted ->
            ok;
        _ ->
            erlang:yield(),
            await(Wanted, Ask, QuickPolls - 1)
    end.

await_long(Wanted, Ask, Deadline_ms) ->
    case Ask() of
        Wanted ->
            ok;
        Other ->
            erlang:monotonic_time(millisecond) < Deadline_ms orelse error({still, Other, instead_of, Wanted}),
            timer:sleep(?PAUSE_MS),
            await_long(Wanted, Ask, Deadline_ms)
    end.
