%% @doc A reverse proxy for HTTP/1.1 in front of apps whose back-ends (dynos) change at run time. Each dyno has a limit
%% of concurrent requests. If an app is at its capacity, the router answers 503: immediately, or after the request has
%% waited for the time that is set for the app.
%%
%% ```
%% 1> {ok, _} = application:ensure_all_started(router).
%% 2> router:put(<<"shop.example">>, 3, [{{127, 0, 0, 1}, 5001}, {{127, 0, 0, 1}, 5002}], 500).
%% ok
%% '''
%%
%% Requests with `Host: shop.example' then go to these two dynos, six at a time.
-module(router).

-export([put/4, delete/1, port/0]).
%% For the router itself.
-export([new/0, find/1, capacity/1, resize/1]).

-export_type([host/0, address/0, app/0]).

-type host() :: binary().
%% The Host header in lower case and without the port. A binary, because it is also the key of the permits, and a string
%% is a more expensive key (docs/performance.md).

-type address() :: {inet:ip_address() | inet:hostname(), inet:port_number()}.

-type app() :: #{
    host := host(), max_per := non_neg_integer(), dynos := [address()], wait_ms := non_neg_integer()
}.

%% @doc Routes requests for `Host' to `Dynos', at most `MaxPer' at a time to each. If all are busy, a request waits for
%% at most `Wait_ms' milliseconds, in the order of arrival; 0 means that it is refused at once.
%%
%% Requests in progress continue. New requests and those that wait use the new dynos. If the capacity shrinks, the
%% router admits no request until enough have been answered. A request that waits keeps the time limit with which it
%% began.
-spec put(host(), MaxPer :: non_neg_integer(), [address()], Wait_ms :: non_neg_integer()) -> ok.
put(Host, MaxPer, Dynos, Wait_ms) when
    is_binary(Host), is_integer(MaxPer), MaxPer >= 0, is_list(Dynos), is_integer(Wait_ms), Wait_ms >= 0
->
    Lower = string:lowercase(Host),
    %% A duplicate does not increase the capacity.
    App = #{host => Lower, max_per => MaxPer, dynos => lists:usort(Dynos), wait_ms => Wait_ms},
    true = ets:insert(?MODULE, {Lower, App}),
    resize(Lower).

%% @doc Removes `Host'. New requests for it get 404, and so do requests that wait, when it is their turn.
-spec delete(host()) -> ok.
delete(Host) ->
    true = ets:delete(?MODULE, string:lowercase(Host)),
    ok.

%% @doc Returns the listening port: the application's `port', or the port chosen by the system if that was 0.
-spec port() -> inet:port_number().
port() ->
    {ok, Port} = application:get_env(router, port),
    Port.

%% The table of apps. Every request looks its app up, and changes apply to the next lookup. The caller owns the table.
-spec new() -> ok.
new() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
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

%% Gives the requests that wait the present capacity of the app. If the app changes at the same time, once more: of
%% several calls, the last one then gives the last capacity.
-spec resize(host()) -> ok.
resize(Host) ->
    case find(Host) of
        {ok, #{max_per := MaxPer, dynos := Dynos} = App} ->
            ok = canal_lock:resize(Host, MaxPer, length(Dynos)),
            case find(Host) of
                {ok, App} -> ok;
                _ -> resize(Host)
            end;
        error ->
            ok
    end.
