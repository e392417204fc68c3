%% Records what the dynos saw: start, end and outcome of each request. Also records the changes: when an app was scaled,
%% and when a process was killed.
%%
%% Times are VM monotonic time in nanoseconds.
-module(router_demo_log).

-export([new/0, delete/1, begin_request/2, end_request/4, at_work/2]).
-export([scaling/5, kill/2, killed/1]).
-export([record/1]).

-export_type([log/0, recording/0, request/0, scaling/0, how/0]).

-opaque log() :: #{entries := ets:table(), counts := ets:table()}.

-type recording() :: #{requests := [request()], scalings := [scaling()], kills := #{Process :: string() => integer()}}.

-type request() :: #{
    host := router_apps:host(),
    dyno := router_dyno:address(),
    %% The router's process for it, as `pid_to_list/1' shows it, without the brackets.
    process := string(),
    %% Capacity of the app when the request was admitted, as sent by the router.
    capacity := non_neg_integer(),
    begun_ns := integer(),
    ended_ns := integer(),
    how := how()
}.

-type how() :: answered | reset | disconnected.
%% reset: by the dyno. disconnected: by the router.

-type scaling() :: #{
    host := router_apps:host(),
    at_ns := integer(),
    max_per := non_neg_integer(),
    dynos := non_neg_integer(),
    %% Number of requests that the router has refused before.
    refused := non_neg_integer()
}.

-spec new() -> log().
new() ->
    #{
        entries => ets:new(entries, [duplicate_bag, public, {write_concurrency, true}]),
        counts => ets:new(counts, [set, public, {write_concurrency, true}])
    }.

-spec delete(log()) -> ok.
delete(#{entries := Entries, counts := Counts}) ->
    true = ets:delete(Entries),
    true = ets:delete(Counts),
    ok.

%% Returns the start time.
-spec begin_request(log(), router_apps:host()) -> integer().
begin_request(#{counts := Counts}, Host) ->
    _ = ets:update_counter(Counts, Host, 1, {Host, 0}),
    erlang:monotonic_time(nanosecond).

%% Must be called before any other process can see that the request has ended.
-spec end_request(log(), #{host := _, dyno := _, process := _, capacity := _}, Begun_ns :: integer(), how()) -> ok.
end_request(#{entries := Entries, counts := Counts}, #{host := Host} = Request, Begun_ns, How) ->
    Ended_ns = erlang:monotonic_time(nanosecond),
    true = ets:insert(Entries, {request, Request#{begun_ns => Begun_ns, ended_ns => Ended_ns, how => How}}),
    _ = ets:update_counter(Counts, Host, -1),
    ok.

%% Number of requests in progress on the app's dynos.
-spec at_work(log(), router_apps:host()) -> non_neg_integer().
at_work(Log, Host) ->
    count(Host, Log).

count(Name, #{counts := Counts}) ->
    case ets:lookup(Counts, Name) of
        [{_, Count}] -> Count;
        [] -> 0
    end.

%% Must be called before router:put/3.
-spec scaling(log(), router_apps:host(), non_neg_integer(), non_neg_integer(), Refused :: non_neg_integer()) -> ok.
scaling(#{entries := Entries}, Host, MaxPer, Dynos, Refused) ->
    At_ns = erlang:monotonic_time(nanosecond),
    Scaling = #{host => Host, at_ns => At_ns, max_per => MaxPer, dynos => Dynos, refused => Refused},
    true = ets:insert(Entries, {scaling, Scaling}),
    ok.

%% Must be called before the process is killed.
-spec kill(log(), pid()) -> ok.
kill(#{entries := Entries, counts := Counts}, Pid) ->
    Process = string:trim(pid_to_list(Pid), both, "<>"),
    true = ets:insert(Entries, {kill, {Process, erlang:monotonic_time(nanosecond)}}),
    _ = ets:update_counter(Counts, kills, 1, {kills, 0}),
    ok.

-spec killed(log()) -> non_neg_integer().
killed(Log) ->
    count(kills, Log).

-spec record(log()) -> recording().
record(#{entries := Entries}) ->
    Of = fun(Kind) -> [Entry || {_, Entry} <- ets:lookup(Entries, Kind)] end,
    #{
        requests => Of(request),
        scalings => lists:sort(fun(#{at_ns := A}, #{at_ns := B}) -> A =< B end, Of(scaling)),
        %% If a process was killed several times, the first counts.
        kills => maps:from_list(lists:reverse(lists:keysort(2, Of(kill))))
    }.
