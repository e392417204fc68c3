%% @doc A reverse proxy for HTTP/1.1, in front of apps whose back-ends (dynos) come and go. Each dyno bears so many
%% requests at a time; who comes when all are taken hears 503 at once.
%%
%% ```
%% 1> {ok, _} = application:ensure_all_started(router).
%% 2> router:put(<<"shop.example">>, 3, [{{127, 0, 0, 1}, 5001}, {{127, 0, 0, 1}, 5002}]).
%% ok
%% '''
%%
%% From then on requests with `Host: shop.example' go to these two, six at a time.
-module(router).

-export([put/3, delete/1, port/0]).

%% @doc From now on requests for `Host' go to `Dynos', `MaxPer' at a time to each. Nobody waits for anything: requests
%% that are on their way go on, and new ones find the new dynos. If there are fewer, none is admitted until enough of
%% those have been answered.
%%
%% Raises `{What_it_is_not, Argument}'.
-spec put(router_apps:host(), MaxPer :: non_neg_integer(), [router_dyno:address()]) -> ok.
put(Host, MaxPer, Dynos) ->
    %% No request is ever found to be for a host with a port.
    (is_binary(Host) andalso binary:match(Host, <<":">>) =:= nomatch) orelse error({not_a_host, Host}),
    (is_integer(MaxPer) andalso MaxPer >= 0) orelse error({not_a_number_of_requests, MaxPer}),
    is_list(Dynos) orelse error({not_a_list_of_dynos, Dynos}),
    _ = [error({not_the_address_of_a_dyno, Dyno}) || Dyno <- Dynos, not router_dyno:is_address(Dyno)],
    %% One that is named twice bears no more than the others.
    router_apps:put(string:lowercase(Host), MaxPer, lists:usort(Dynos)).

%% @doc From now on `Host' is unknown here.
-spec delete(router_apps:host()) -> ok.
delete(Host) ->
    router_apps:delete(string:lowercase(Host)).

%% @doc Where clients are served: what the application's `port' is, or what was free if that is 0.
-spec port() -> inet:port_number().
port() ->
    mochiweb_socket_server:get(router_door, port).
