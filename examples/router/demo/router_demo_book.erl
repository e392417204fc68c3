%% What the dynos have seen, noted by themselves: when each request was begun and ended, and what became of it. And what
%% was done to the router meanwhile: when an app was given how many dynos, and when which process was killed.
%%
%% Times are those of the VM's monotonic clock, in nanoseconds.
-module(router_demo_book).

-export([new/0, delete/1, begin_request/2, end_request/4, at_work/2]).
-export([scaling/5, kill/2, killed/1]).
-export([record/1]).

-export_type([book/0, record/0, request/0, scaling/0, how/0]).

-opaque book() :: #{entries := ets:table(), counts := ets:table()}.

-type record() :: #{requests := [request()], scalings := [scaling()], kills := #{Process :: string() => integer()}}.

-type request() :: #{
    host := router_apps:host(),
    dyno := router_dyno:address(),
    %% The router's process for it, as `pid_to_list/1' shows it, without the brackets.
    process := string(),
    %% What the app bore when the request was admitted, as the router said.
    capacity := non_neg_integer(),
    begun_ns := integer(),
    ended_ns := integer(),
    how := how()
}.

-type how() :: answered | reset | hung_up.
%% The last two: the dyno has broken off, or has been left by the router.

-type scaling() :: #{
    host := router_apps:host(),
    at_ns := integer(),
    max_per := non_neg_integer(),
    dynos := non_neg_integer(),
    %% Requests that the router has refused by then.
    refused := non_neg_integer()
}.

-spec new() -> book().
new() ->
    #{
        entries => ets:new(entries, [duplicate_bag, public, {write_concurrency, true}]),
        counts => ets:new(counts, [set, public, {write_concurrency, true}])
    }.

-spec delete(book()) -> ok.
delete(#{entries := Entries, counts := Counts}) ->
    true = ets:delete(Entries),
    true = ets:delete(Counts),
    ok.

%% When it began.
-spec begin_request(book(), router_apps:host()) -> integer().
begin_request(#{counts := Counts}, Host) ->
    _ = ets:update_counter(Counts, Host, 1, {Host, 0}),
    erlang:monotonic_time(nanosecond).

%% To be called before anybody can know that it has ended.
-spec end_request(book(), #{host := _, dyno := _, process := _, capacity := _}, Begun_ns :: integer(), how()) -> ok.
end_request(#{entries := Entries, counts := Counts}, #{host := Host} = Request, Begun_ns, How) ->
    Ended_ns = erlang:monotonic_time(nanosecond),
    true = ets:insert(Entries, {request, Request#{begun_ns => Begun_ns, ended_ns => Ended_ns, how => How}}),
    _ = ets:update_counter(Counts, Host, -1),
    ok.

%% Requests that the app's dynos work on just now.
-spec at_work(book(), router_apps:host()) -> non_neg_integer().
at_work(Book, Host) ->
    count(Host, Book).

count(Name, #{counts := Counts}) ->
    case ets:lookup(Counts, Name) of
        [{_, Count}] -> Count;
        [] -> 0
    end.

%% To be noted before the router is told.
-spec scaling(book(), router_apps:host(), non_neg_integer(), non_neg_integer(), Refused :: non_neg_integer()) -> ok.
scaling(#{entries := Entries}, Host, MaxPer, Dynos, Refused) ->
    At_ns = erlang:monotonic_time(nanosecond),
    Scaling = #{host => Host, at_ns => At_ns, max_per => MaxPer, dynos => Dynos, refused => Refused},
    true = ets:insert(Entries, {scaling, Scaling}),
    ok.

%% To be noted before it is done.
-spec kill(book(), pid()) -> ok.
kill(#{entries := Entries, counts := Counts}, Pid) ->
    Process = string:trim(pid_to_list(Pid), both, "<>"),
    true = ets:insert(Entries, {kill, {Process, erlang:monotonic_time(nanosecond)}}),
    _ = ets:update_counter(Counts, kills, 1, {kills, 0}),
    ok.

-spec killed(book()) -> non_neg_integer().
killed(Book) ->
    count(kills, Book).

-spec record(book()) -> record().
record(#{entries := Entries}) ->
    Of = fun(Kind) -> [Entry || {_, Entry} <- ets:lookup(Entries, Kind)] end,
    #{
        requests => Of(request),
        scalings => lists:sort(fun(#{at_ns := A}, #{at_ns := B}) -> A =< B end, Of(scaling)),
        %% The first kill, if there are several.
        kills => maps:from_list(lists:reverse(lists:keysort(2, Of(kill))))
    }.
