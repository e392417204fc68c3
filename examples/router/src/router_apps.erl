%% Stores the dynos of each app and their limit. Every request looks its app up; changes apply to the next lookup.
-module(router_apps).

-export([new/0, put/3, delete/1, find/1]).

-export_type([host/0, app/0]).

-type host() :: binary().
%% The Host header in lower case and without the port: `<<"shop.example">>'. A binary, because it is also the key of the
%% permits, and a string is a more expensive key (docs/performance.md).

-type app() :: #{
    host := host(),
    max_per := non_neg_integer(),
    dynos := [router_dyno:address()],
    stats := router_stats:stats()
}.

%% The caller owns the table.
-spec new() -> ok.
new() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

%% Keeps the statistics of an existing app.
-spec put(host(), non_neg_integer(), [router_dyno:address()]) -> ok.
put(Host, MaxPer, Dynos) ->
    Stats =
        case find(Host) of
            {ok, #{stats := Before}} -> Before;
            error -> router_stats:new()
        end,
    true = ets:insert(?MODULE, {Host, #{host => Host, max_per => MaxPer, dynos => Dynos, stats => Stats}}),
    ok.

-spec delete(host()) -> ok.
delete(Host) ->
    true = ets:delete(?MODULE, Host),
    ok.

-spec find(host()) -> {ok, app()} | error.
find(Host) ->
    case ets:lookup(?MODULE, Host) of
        [{_, App}] -> {ok, App};
        [] -> error
    end.
