%% @doc A reverse proxy for HTTP/1.1 in front of apps whose back-ends (dynos) change at run time. Each dyno has a limit
%% of concurrent requests. If an app is at its capacity, the router answers 503: immediately, or after the request has
%% waited for the time that is set for the app.
%%
%% ```
%% 1> {ok, _} = application:ensure_all_started(router).
%% 2> router:put(<<"shop.example">>, 3, [{{127, 0, 0, 1}, 5001}, {{127, 0, 0, 1}, 5002}]).
%% ok
%% '''
%%
%% Requests with `Host: shop.example' then go to these two dynos, six at a time.
-module(router).

-export([put/3, put/4, delete/1, port/0]).

%% Waits of this many milliseconds are the longest that a `receive' supports.
-define(MAX_MS, 16#FFFFFFFF).

%% @doc As {@link put/4}, with the application's `wait_ms' at the time of the call.
-spec put(router_apps:host(), MaxPer :: non_neg_integer(), [router_dyno:address()]) -> ok.
put(Host, MaxPer, Dynos) ->
    {ok, Wait_ms} = application:get_env(router, wait_ms),
    put(Host, MaxPer, Dynos, Wait_ms).

%% @doc Routes requests for `Host' to `Dynos', at most `MaxPer' at a time to each. If all are busy, a request waits for
%% at most `Wait_ms' milliseconds, in the order of arrival; 0 means that it is refused at once.
%%
%% Requests in progress continue. New requests and those that wait use the new dynos. If the capacity shrinks, the
%% router admits no request until enough have been answered. A request that waits keeps the time limit with which it
%% began.
%%
%% Raises `{What_it_is_not, Argument}' for a wrong argument.
-spec put(router_apps:host(), MaxPer :: non_neg_integer(), [router_dyno:address()], Wait_ms :: non_neg_integer()) -> ok.
put(Host, MaxPer, Dynos, Wait_ms) ->
    %% The port is removed from the Host header, so a host with a port would never match.
    (is_binary(Host) andalso binary:match(Host, <<":">>) =:= nomatch) orelse error({not_a_host, Host}),
    (is_integer(MaxPer) andalso MaxPer >= 0) orelse error({not_a_number_of_requests, MaxPer}),
    is_list(Dynos) orelse error({not_a_list_of_dynos, Dynos}),
    _ = [error({not_the_address_of_a_dyno, Dyno}) || Dyno <- Dynos, not router_dyno:is_address(Dyno)],
    (is_integer(Wait_ms) andalso Wait_ms >= 0 andalso Wait_ms =< ?MAX_MS) orelse error({not_a_time, Wait_ms}),
    Lower = string:lowercase(Host),
    %% A duplicate does not increase the capacity.
    ok = router_apps:put(Lower, MaxPer, lists:usort(Dynos), Wait_ms),
    router_queue:resize(Lower).

%% @doc Removes `Host'. New requests for it get 404, and so do requests that wait, when it is their turn.
-spec delete(router_apps:host()) -> ok.
delete(Host) ->
    router_apps:delete(string:lowercase(Host)).

%% @doc Returns the listening port: the application's `port', or the port chosen by the system if that is 0.
-spec port() -> inet:port_number().
port() ->
    mochiweb_socket_server:get(router_listener, port).
