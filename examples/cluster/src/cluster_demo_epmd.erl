%% Where the nodes of the demo find each other: they are told, by the VM that has started them. So no port mapper
%% daemon has to run or is left running, nobody from outside can connect; and two nodes that are cut from each other
%% stay so, however often they try, because neither knows where the other one listens.
-module(cluster_demo_epmd).

-export([arguments/0, port/0, tell/2, forget/1]).

%% What kernel asks of such a module.
-export([start_link/0, register_node/2, register_node/3, names/1, address_please/3, port_please/2, port_please/3]).

-define(PROTOCOL_VERSION, 5).

%% Of a node that is to be among them.
-spec arguments() -> [string()].
arguments() ->
    ["-start_epmd", "false", "-epmd_module", ?MODULE_STRING, "-kernel", "inet_dist_use_interface", "{127,0,0,1}"].

%% Where this node listens.
-spec port() -> inet:port_number().
port() ->
    persistent_term:get(?MODULE).

-spec tell(node(), inet:port_number()) -> ok.
tell(Node, Port) ->
    persistent_term:put({?MODULE, first_part(Node)}, Port).

-spec forget(node()) -> ok.
forget(Node) ->
    _ = persistent_term:erase({?MODULE, first_part(Node)}),
    ok.

first_part(Node) ->
    hd(string:split(atom_to_list(Node), "@")).

start_link() ->
    ignore.

register_node(Name, Port) ->
    register_node(Name, Port, inet).

%% With a number that tells the node from earlier ones of the same name.
register_node(_Name, Port, _Family) ->
    ok = persistent_term:put(?MODULE, Port),
    {ok, rand:uniform(1 bsl 30)}.

names(_Host) ->
    {error, address}.

address_please(Name, Host, _Family) ->
    case port_please(Name, Host) of
        {port, Port, Version} -> {ok, {127, 0, 0, 1}, Port, Version};
        noport -> {error, nxdomain}
    end.

port_please(Name, Address) ->
    port_please(Name, Address, infinity).

port_please(Name, _Address, _Timeout) ->
    case persistent_term:get({?MODULE, lists:concat([Name])}, unknown) of
        unknown -> noport;
        Port -> {port, Port, ?PROTOCOL_VERSION}
    end.
