%% Which dynos each app has, and how many requests one of them bears: looked up by every request, changed at any time.
%% Nobody is told of a change; whoever asks next finds it.
-module(router_apps).

-export([new/0, put/3, delete/1, find/1]).

-export_type([host/0, app/0]).

-type host() :: binary().
%% What clients ask for, in small letters and without a port: `<<"shop.example">>'. A binary, because it is the key of
%% the permits, too, and a string would be the dearer one (docs/performance.md).

-type app() :: #{
    host := host(),
    max_per := non_neg_integer(),
    dynos := [router_dyno:address()],
    stats := router_stats:stats()
}.

%% Owned by the process that calls this.
-spec new() -> ok.
new() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok.

%% Its statistics go on when an app is put again.
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
