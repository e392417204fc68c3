%% What is out, by the subjects' own books. A measurement that leaves anything behind has not measured what it says,
%% so each one ends with books that are closed, or crashes.
-module(bench_books).

-export([await_permits/3, await/2, closed/1]).

-type subject() :: ours | ets.

%% Looks before it begins to sleep in between: what is quick is seen within microseconds, and what takes long is not
%% kept from a processor by those who wait for it.
-define(QUICK_LOOKS, 1000).
-define(PAUSE_MS, 1).
%% The ETS design takes seconds for some hundred thousand deaths.
-define(DEADLINE_MS, 120000).

%% Waits until so many permits of each of these keys are out; all of them in the first bucket.
-spec await_permits(subject(), Keys :: [term()], Permits :: non_neg_integer()) -> ok.
await_permits(Subject, Keys, Permits) ->
    lists:foreach(fun(Key) -> await(Permits, fun() -> count(Subject, Key) end) end, Keys).

count(ours, Key) ->
    canal_lock:count(Key);
count(ets, Key) ->
    case ets:lookup(test_original, {Key, 1}) of
        [{_, Count}] -> Count;
        [] -> 0
    end.

%% A death may be seen a moment before its permits are back.
-spec closed(subject() | counters) -> ok.
closed(ours) ->
    ok = await(0, fun() -> maps:get(permits, canal_lock:info()) end),
    #{holders := 0} = canal_lock:info(),
    [] = canal_lock:keys(),
    [] = canal_lock:audit(),
    ok;
closed(ets) ->
    IsOut = [{{{'_', '$1'}, '$2'}, [{is_integer, '$1'}, {'=/=', '$2', 0}], [true]}],
    ok = await(0, fun() -> ets:select_count(test_original, IsOut) end),
    ok = bench_subjects:settle(ets),
    0 = ets:info(canal_lock_ets_monitors, size),
    ok;
closed(counters) ->
    0 = ets:select_count(persistent_term:get(bench_counters), [{{'_', '$1'}, [{'=/=', '$1', 0}], [true]}]),
    ok.

%% Until that is the answer.
-spec await(Wanted, fun(() -> Wanted | term())) -> ok.
await(Wanted, Ask) ->
    await(Wanted, Ask, ?QUICK_LOOKS).

await(Wanted, Ask, 0) ->
    await_long(Wanted, Ask, erlang:monotonic_time(millisecond) + ?DEADLINE_MS);
await(Wanted, Ask, QuickLooks) ->
    case Ask() of
        Wanted ->
            ok;
        _ ->
            erlang:yield(),
            await(Wanted, Ask, QuickLooks - 1)
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
