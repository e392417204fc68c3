%% Where the nodes of a test find each other: they are told, by whoever has started them. So no port mapper daemon has
%% to run or is left running, the name of the machine is not looked up, and nobody from outside can connect.
-module(test_epmd).

-export([arguments/0, port/0, tell/2]).

%% What kernel asks of such a module.
-export([start_link/0, register_node/2, register_node/3, names/1, address_please/3, port_please/2, port_please/3]).

-define(ADDRESS, {127, 0, 0, 1}).
-define(PROTOCOL_VERSION, 5).

%% Of a node that is to be among them.
-spec arguments() -> [string()].
arguments() ->
    ["-start_epmd", "false", "-epmd_module", ?MODULE_STRING, "-kernel", "inet_dist_use_interface", "{127,0,0,1}"].

%% Where this node listens.
-spec port() -> inet:port_number().
port() ->
    persistent_term:get(?MODULE).

%% This node is told where another one listens.
-spec tell(node(), inet:port_number()) -> ok.
tell(Node, Port) ->
    [Name, _Host] = string:split(atom_to_list(Node), "@"),
    persistent_term:put({?MODULE, Name}, Port).

start_link() ->
    ignore.

register_node(Name, Port) ->
    register_node(Name, Port, inet).

%% With a number that tells the node from others of the same name.
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
    case persistent_term:get({?MODULE, lists:concat([Name])}, unknown) of
        unknown -> noport;
        Port -> {port, Port, ?PROTOCOL_VERSION}
    end.
