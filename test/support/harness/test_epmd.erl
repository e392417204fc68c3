%% Resolves the ports of test nodes. The VM that starts the nodes stores in each one where the others listen. So no port
%% mapper daemon runs, the host name is not looked up, and no other host can connect. Two nodes that are disconnected
%% stay so while neither knows the other's port.
-module(test_epmd).

-export([arguments/0, port/0, set_port/2, forget/1]).

%% The callbacks of kernel's erl_epmd.
-export([start_link/0, register_node/2, register_node/3, names/1, address_please/3, port_please/2, port_please/3]).

-define(ADDRESS, {127, 0, 0, 1}).
-define(PROTOCOL_VERSION, 5).

%% Command-line arguments that make a node use this module.
-spec arguments() -> [string()].
arguments() ->
    ["-start_epmd", "false", "-epmd_module", ?MODULE_STRING, "-kernel", "inet_dist_use_interface", "{127,0,0,1}"].

%% The port of this node.
-spec port() -> inet:port_number().
port() ->
    persistent_term:get(?MODULE).

%% Stores on this node the port of another node.
-spec set_port(node(), inet:port_number()) -> ok.
set_port(Node, Port) ->
    persistent_term:put(key(Node), Port).

%% From now on this node cannot connect to that one.
-spec forget(node()) -> ok.
forget(Node) ->
    _ = persistent_term:erase(key(Node)),
    ok.

key(Node) ->
    {?MODULE, hd(string:split(lists:concat([Node]), "@"))}.

start_link() ->
    ignore.

register_node(Name, Port) ->
    register_node(Name, Port, inet).

%% The creation number differs between nodes that use the same name one after the other.
register_node(_Name, Port, _Family) ->
    ok = persistent_term:put(?MODULE, Port),
    {ok, rand:uniform(1 bsl 30)}.

names(_Host) ->
    {error, address}.

address_please(Name, _Host, _Family) ->
    case port_please(Name, ?ADDRESS) of
        {port, Port, Version} -> {ok, ?ADDRESS, Port, Version};
        noport -> {error, nxdomain}
    end.

port_please(Name, Address) ->
    port_please(Name, Address, infinity).

port_please(Name, _Address, _Timeout) ->
    case persistent_term:get(key(Name), unknown) of
        unknown -> noport;
        Port -> {port, Port, ?PROTOCOL_VERSION}
    end.
