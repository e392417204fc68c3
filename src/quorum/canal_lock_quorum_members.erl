%% @private
%% Asks all members and clients for their part of an answer.
-module(canal_lock_quorum_members).

-export([all/1, ask/4, ask_all/3]).

%% All members, and the clients that voters of these know. Exits with `noproc' if canal_lock_quorum is not started on
%% this node. On a cluster without clients this asks no node.
-spec all(Timeout_ms :: non_neg_integer()) -> [node()].
all(Timeout_ms) ->
    #{members := Statuses, may_have_clients := MayHaveClients} = canal_lock_quorum_agent:status(),
    Members = [Node || #{node := Node} <- Statuses],
    Clients =
        case MayHaveClients of
            true ->
                %% A quorum of voters knows each client that has a lock. A member that does not answer is noticed later.
                {Known, _} = ask(Members, canal_lock_quorum_voter, {clients, []}, Timeout_ms),
                lists:usort([Node || {_, Clients} <- Known, #{node := Node} <- Clients]);
            false ->
                []
        end,
    Members ++ (Clients -- Members).

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
    {Answers, Silent} = ask(all(Timeout_ms), Module, Call, Timeout_ms),
    {lists:append([Part || {_, Part} <- Answers]), Silent}.
