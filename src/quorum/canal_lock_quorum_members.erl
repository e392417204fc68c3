%% @private
%% Asks all members and clients for their part of an answer.
-module(canal_lock_quorum_members).

-export([ask_all/3]).

%% All members, and the clients that voters of these know. `Unknown' are the members whose clients are not known. Exits
%% with `noproc' if canal_lock_quorum is not started on this node. Where no clients are allowed this asks no node.
-spec all(Timeout_ms :: non_neg_integer()) -> {[node()], Unknown :: [node()]}.
all(Timeout_ms) ->
    #{members := Statuses, may_have_clients := MayHaveClients} = canal_lock_quorum_agent:status(),
    Members = [Node || #{node := Node} <- Statuses],
    {Clients, Unknown} =
        case MayHaveClients of
            true ->
                {Answers, Silent} = ask(Members, canal_lock_quorum_voter, {clients, []}, Timeout_ms),
                Known = [Node || {_, [_ | _] = Of} <- Answers, #{node := Node} <- Of],
                {lists:usort(Known), Silent ++ [Node || {Node, not_known} <- Answers]};
            false ->
                {[], []}
        end,
    {Members ++ (Clients -- Members), Unknown}.

%% The answers of these nodes, and those that did not answer in time. A node that is not connected, or on which
%% canal_lock_quorum is not started, does not answer.
-spec ask([node()], module(), {Function :: atom(), Arguments :: [term()]}, Timeout_ms :: non_neg_integer()) ->
    {[{node(), Answer :: term()}], Silent :: [node()]}.
ask(Nodes, Module, {Function, Arguments}, Timeout_ms) ->
    {Connected, Disconnected} = lists:partition(
        fun(Node) -> lists:member(Node, [node() | nodes(connected)]) end, Nodes
    ),
    Answers = lists:zip(Connected, erpc:multicall(Connected, Module, Function, Arguments, Timeout_ms)),
    {
        [{Node, Answer} || {Node, {ok, Answer}} <- Answers],
        [Node || {Node, Answer} <- Answers, element(1, Answer) =/= ok] ++ Disconnected
    }.

%% The lists of all of them as one list.
-spec ask_all(module(), {Function :: atom(), Arguments :: [term()]}, Timeout_ms :: non_neg_integer()) ->
    {[term()], Silent :: [node()]}.
ask_all(Module, Call, Timeout_ms) ->
    {Nodes, Unknown} = all(Timeout_ms div 2),
    {Answers, Silent} = ask(Nodes, Module, Call, Timeout_ms - Timeout_ms div 2),
    {lists:append([Part || {_, Part} <- Answers]), lists:usort(Unknown ++ Silent)}.
