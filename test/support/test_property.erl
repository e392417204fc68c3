%% Checks properties that prove something only if certain events occur in their cases.
-module(test_property).

-export([check/5]).

%% A rare event can need many cases, and a busy machine runs few of them in a second. So the limit is a time.
-define(LONGEST_MS, 240_000).

%% Runs `Cases' cases (CANAL_LOCK_SOAK times as many) of this size, and again as many until each wanted event has
%% occurred: `Table' then has the key `{seen, Event}'. Returns false if the property does not hold.
-spec check(proper:outer_test(), Cases :: pos_integer(), Size :: pos_integer(), ets:table(), Wanted :: [term()]) ->
    boolean().
check(Property, Cases, Size, Table, Wanted) ->
    Options = [{numtests, test_setup:times(Cases)}, {start_size, Size}, {max_size, Size}, quiet],
    Run = fun() -> proper:quickcheck(Property, Options) end,
    Missing = fun() -> [Event || Event <- Wanted, not ets:member(Table, {seen, Event})] end,
    Run() andalso until_seen(Run, Missing, erlang:monotonic_time(millisecond) + ?LONGEST_MS).

until_seen(Run, Missing, Deadline_ms) ->
    case Missing() of
        [] ->
            true;
        Events ->
            erlang:monotonic_time(millisecond) < Deadline_ms orelse error({did_not_occur, Events}),
            Run() andalso until_seen(Run, Missing, Deadline_ms)
    end.
