%% @private
%% What the agent of this node and the allocator say about the cluster permits.
-module(canal_lock_cluster_status).

-export([read/0, usage/1]).

-spec read() -> canal_lock_cluster:status() | {raise, not_started}.
read() ->
    case agent() of
        {raise, _} = Raise ->
            Raise;
        Status = #{allocator := Node} ->
            WaitsFor = case asked(Node, fun() -> canal_lock_cluster_allocator:waits_for(Node) end) of
                {ok, Nodes} -> Nodes;
                {error, no_quorum} -> unknown
            end,
            Status#{waits_for => WaitsFor, totals => canal_lock_cluster_totals:read()}
    end.

-spec usage(canal_lock:key()) ->
    {ok, canal_lock_cluster:usage()} | {error, no_quorum} | {raise, not_started}.
usage(Key) ->
    case agent() of
        {raise, _} = Raise -> Raise;
        #{allocator := Node} -> with_uses(Key, asked(Node, fun() -> canal_lock_cluster_allocator:usage(Node, Key) end))
    end.

%% The allocator knows what nodes have reported last, which is old for those that need nothing.
with_uses(Key, {ok, Usage = #{nodes := Reported}}) ->
    Uses = canal_lock_cluster_agent:uses(maps:keys(Reported), Key),
    Nodes = maps:map(fun(Node, Of) -> maps:merge(Of, maps:get(Node, Uses, #{})) end, Reported),
    Sum = fun(What) -> lists:sum([maps:get(What, Of) || Of <- maps:values(Nodes)]) end,
    {ok, Usage#{nodes := Nodes, in_use => Sum(in_use), waiting => Sum(waiting)}};
with_uses(_, Error) ->
    Error.

agent() ->
    try
        canal_lock_cluster_agent:status()
    catch
        exit:noproc -> {raise, not_started}
    end.

%% The allocator can end at any time.
asked(none, _) ->
    {error, no_quorum};
asked(_, Call) ->
    try Call() of
        not_ready -> {error, no_quorum};
        Answer -> {ok, Answer}
    catch
        exit:_ -> {error, no_quorum}
    end.
