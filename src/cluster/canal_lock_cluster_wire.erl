%% @private
%% Messages between the agents and the allocator.
-module(canal_lock_cluster_wire).

-export([send/3]).

%% Neither waits for a busy connection nor connects to the node. A message that is refused is lost, as if the connection
%% had been.
-spec send(Process :: atom(), node(), Message :: term()) -> ok | refused.
send(Process, Node, Message) ->
    case erlang:send({Process, Node}, Message, [nosuspend, noconnect]) of
        ok -> ok;
        _ -> refused
    end.
