%% @private
%% Asks all members for their part of an answer.
-module(canal_lock_quorum_members).

-export([all/0, ask/4, ask_all/3]).

%% All members. Exits with `noproc' if canal_lock_quorum is not started on this node.
-spec all() -> [node()].
all() ->
    #{members := Members} = canal_lock_quorum_agent:status(),
    [Node || #{node := Node} <- Members].

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

%% The lists of all members as one list.
-spec ask_all(module(), {Function :: atom(), Arguments :: [term()]}, Timeout_ms :: non_neg_integer()) ->
    {[term()], Silent :: [node()]}.
ask_all(Module, Call, Timeout_ms) ->
    {Answers, Silent} = ask(all(), Module, Call, Timeout_ms),
    {lists:append([Part || {_, Part} <- Answers]), Silent}.
