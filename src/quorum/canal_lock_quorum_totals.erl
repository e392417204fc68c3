%% @private
%% Counts what happened to the requests and locks of a node. The agent's process counts, which takes some tens of
%% nanoseconds for each event. Any process can read. The counts are part of the configuration, so they continue when the
%% agent is restarted, and begin at 0 at each start of canal_lock_quorum.
-module(canal_lock_quorum_totals).

-export([new/0, add/2, add/3, granted/3, read/1, reset_longest_wait/1]).

-export_type([ref/0, totals/0]).

-opaque ref() :: counters:counters_ref().

%% Requests: `granted', of which `passed' got the lock from another process of this node, without a message;
%% `refused_timeout', `refused_no_quorum' and `refused_too_many_waiting'; and `canceled', whose caller has died.
%% `wait_us' is the time that the granted requests waited, `longest_wait_us' the longest since the last event.
%%
%% Ends of locks: `unlocked' by a call or the death of the holder, `lost', and `revoked'. So `granted' is the sum of
%% these three and of the held locks. `at_risk' counts the messages to holders.
%%
%% `recalled' counts how often a request gave its votes back, because an older one of another node waited for them.
-type totals() :: #{total() | wait_us | longest_wait_us := non_neg_integer()}.

-type total() ::
    granted
    | passed
    | refused_timeout
    | refused_no_quorum
    | refused_too_many_waiting
    | canceled
    | unlocked
    | lost
    | revoked
    | at_risk
    | recalled.

-spec new() -> ref().
new() ->
    counters:new(length(totals()), []).

%% In the order of `place/1'.
totals() ->
    [
        granted, passed, refused_timeout, refused_no_quorum, refused_too_many_waiting, canceled, unlocked, lost,
        revoked, at_risk, wait_us, longest_wait_us, recalled
    ].

place(granted) -> 1;
place(passed) -> 2;
place(refused_timeout) -> 3;
place(refused_no_quorum) -> 4;
place(refused_too_many_waiting) -> 5;
place(canceled) -> 6;
place(unlocked) -> 7;
place(lost) -> 8;
place(revoked) -> 9;
place(at_risk) -> 10;
place(wait_us) -> 11;
place(longest_wait_us) -> 12;
place(recalled) -> 13.

-spec add(ref(), total()) -> ok.
add(Ref, Total) ->
    add(Ref, Total, 1).

-spec add(ref(), total(), non_neg_integer()) -> ok.
add(Ref, Total, Count) ->
    counters:add(Ref, place(Total), Count).

%% Counts a lock that was requested at this time (`os:perf_counter()').
-spec granted(ref(), Since :: integer(), passed | asked) -> ok.
granted(Ref, Since, Path) ->
    Wait_us = erlang:convert_time_unit(os:perf_counter() - Since, perf_counter, microsecond),
    ok = add(Ref, granted),
    ok = counters:add(Ref, place(wait_us), Wait_us),
    _ = Path =:= passed andalso add(Ref, passed),
    case Wait_us > counters:get(Ref, place(longest_wait_us)) of
        true -> counters:put(Ref, place(longest_wait_us), Wait_us);
        false -> ok
    end.

-spec read(ref()) -> totals().
read(Ref) ->
    maps:from_list([{Total, counters:get(Ref, place(Total))} || Total <- totals()]).

-spec reset_longest_wait(ref()) -> ok.
reset_longest_wait(Ref) ->
    counters:put(Ref, place(longest_wait_us), 0).
