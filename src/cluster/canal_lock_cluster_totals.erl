%% @private
%% Counts what happened to the cluster permits of a node. Any process can count and read. The counts begin at 0 when
%% canal_lock_cluster is started.
-module(canal_lock_cluster_totals).

-export([new/0, add/2, granted/1, read/0, reset_longest_wait/0]).

-export_type([totals/0]).

%% Calls: `granted' after an answer of the allocator or a wait, `refused' with `full', and those with `no_quorum'.
%% `wait_us' is how long the granted ones waited in all, `longest_wait_us' the longest since the last telemetry event.
%%
%% Permits: `received' from the allocator, `returned' to it, and `lost' at the end of a session. `recalled': how often
%% the allocator has lowered what this node may use of a key. `takeovers': how often this node became the allocator.
-type totals() :: #{total() | wait_us | longest_wait_us := non_neg_integer()}.

-type total() :: granted | refused | no_quorum | received | returned | lost | recalled | takeovers.

-spec new() -> ok.
new() ->
    persistent_term:put(?MODULE, counters:new(length(totals()), [])).

%% In the order of `place/1'.
totals() ->
    [granted, refused, no_quorum, received, returned, lost, recalled, takeovers, wait_us, longest_wait_us].

place(granted) -> 1;
place(refused) -> 2;
place(no_quorum) -> 3;
place(received) -> 4;
place(returned) -> 5;
place(lost) -> 6;
place(recalled) -> 7;
place(takeovers) -> 8;
place(wait_us) -> 9;
place(longest_wait_us) -> 10.

-spec add(total(), non_neg_integer()) -> ok.
add(Total, Count) ->
    counters:add(ref(), place(Total), Count).

%% Counts a grant that was requested at this time (`os:perf_counter()').
-spec granted(Since :: integer()) -> ok.
granted(Since) ->
    Ref = ref(),
    Wait_us = erlang:convert_time_unit(os:perf_counter() - Since, perf_counter, microsecond),
    ok = counters:add(Ref, place(granted), 1),
    ok = counters:add(Ref, place(wait_us), Wait_us),
    %% Of several calls at once, a shorter wait can replace a longer one.
    case Wait_us > counters:get(Ref, place(longest_wait_us)) of
        true -> counters:put(Ref, place(longest_wait_us), Wait_us);
        false -> ok
    end.

-spec read() -> totals().
read() ->
    Ref = ref(),
    maps:from_list([{Total, counters:get(Ref, place(Total))} || Total <- totals()]).

-spec reset_longest_wait() -> ok.
reset_longest_wait() ->
    counters:put(ref(), place(longest_wait_us), 0).

ref() ->
    persistent_term:get(?MODULE).
