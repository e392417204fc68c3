%% Stores the dynos of each app and their limit. Every request looks its app up; changes apply to the next lookup.
-module(router_apps).

-export([new/0, put/4, delete/1, find/1, capacity/1]).

-export_type([host/0, app/0]).

-type host() :: binary().
%% The Host header in lower case and without the port: `<<"shop.example">>'. A binary, because it is also the key of the
%% permits, and a string is a more expensive key (docs/performance.md).

-type app() :: #{
    host := host(),
    max_per := non_neg_integer(),
    dynos := [router_dyno:address()],
    wait_ms := non_neg_integer(),
    stats := router_stats:stats()
}.

%% The caller owns the table.
-spec new() -> ok.
new() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

%% Keeps the statistics of an existing app.
-spec put(host(), non_neg_integer(), [router_dyno:address()], non_neg_integer()) -> ok.
put(Host, MaxPer, Dynos, Wait_ms) ->
    Stats =
        case find(Host) of
            {ok, #{stats := Before}} -> Before;
            error -> router_stats:new()
        end,
    App = #{host => Host, max_per => MaxPer, dynos => Dynos, wait_ms => Wait_ms, stats => Stats},
    true = ets:insert(?MODULE, {Host, App}),
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

-spec capacity(app()) -> non_neg_integer().
capacity(#{max_per := MaxPer, dynos := Dynos}) ->
    MaxPer * length(Dynos).
