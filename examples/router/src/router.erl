%% @doc A reverse proxy for HTTP/1.1 in front of apps whose back-ends (dynos) change at run time. Each dyno has a limit
%% of concurrent requests. If an app is at its capacity, the router answers 503 immediately.
%%
%% ```
%% 1> {ok, _} = application:ensure_all_started(router).
%% 2> router:put(<<"shop.example">>, 3, [{{127, 0, 0, 1}, 5001}, {{127, 0, 0, 1}, 5002}]).
%% ok
%% '''
%%
%% Requests with `Host: shop.example' then go to these two dynos, six at a time.
-module(router).

-export([put/3, delete/1, port/0]).

%% @doc Routes requests for `Host' to `Dynos', at most `MaxPer' at a time to each. Requests in progress continue, and
%% new requests use the new dynos. If the capacity shrinks, the router admits no request until enough have been
%% answered.
%%
%% Raises `{What_it_is_not, Argument}' for a wrong argument.
-spec put(router_apps:host(), MaxPer :: non_neg_integer(), [router_dyno:address()]) -> ok.
put(Host, MaxPer, Dynos) ->
    %% The port is removed from the Host header, so a host with a port would never match.
    (is_binary(Host) andalso binary:match(Host, <<":">>) =:= nomatch) orelse error({not_a_host, Host}),
    (is_integer(MaxPer) andalso MaxPer >= 0) orelse error({not_a_number_of_requests, MaxPer}),
    is_list(Dynos) orelse error({not_a_list_of_dynos, Dynos}),
    _ = [error({not_the_address_of_a_dyno, Dyno}) || Dyno <- Dynos, not router_dyno:is_address(Dyno)],
    %% A duplicate does not increase the capacity.
    router_apps:put(string:lowercase(Host), MaxPer, lists:usort(Dynos)).

%% @doc Removes `Host'. New requests for it get 404.
-spec delete(router_apps:host()) -> ok.
delete(Host) ->
    router_apps:delete(string:lowercase(Host)).

%% @doc Returns the listening port: the application's `port', or the port chosen by the system if that is 0.
-spec port() -> inet:port_number().
port() ->
    mochiweb_socket_server:get(router_listener, port).
