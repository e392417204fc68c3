%% @private
%% Which names are locked in the whole cluster, for canal_lock_cluster: by the votes that a quorum of voters have.
%%
%% A lock that is held when the question begins has votes of a quorum, and voters keep votes longer than holders count
%% them. So if a quorum of voters of one view answers within that time, at least one of them has a vote for each lock
%% that has been held all the time. A voter that may have forgotten votes does not answer. A lock that was granted
%% before the question and is not in the answer has ended, and is never held again (Q15).
-module(canal_lock_quorum_live).

-export([names/1, ask/3]).

-export_type([answer/0]).

%% `View' is the same term for voters of one view only.
-type answer() :: {View :: term(), Quorum :: pos_integer(), [Name :: binary()]} | none.

%% The names with votes that begin with `Prefix'. An unlocked name can be among them for some milliseconds, that of a
%% dead holder until the lease expires.
%%
%% Errors: `no_quorum', if no quorum of voters has answered within a fortieth of the lease, or 83 ms if that is longer.
%% Cost: a message to each member and back.
-spec names(Prefix :: binary()) -> {ok, [canal_lock_quorum_names:name() | canal_lock_quorum_names:reserved()]} |
    {error, no_quorum}.
names(Prefix) ->
    #{members := Members} = canal_lock_quorum_agent:status(),
    Nodes = [Node || #{node := Node, connected := true} <- Members],
    Within_ms = canal_lock_quorum_nif:answers_ms(canal_lock_quorum_agent:lease_ms()),
    %% A process of its own: a busy connection can suspend it, and late answers end with it. It asks connected nodes
    %% only, because it would wait for the others to be connected.
    {_, Monitor} = spawn_monitor(?MODULE, ask, [Prefix, Nodes, Within_ms]),
    receive
        {'DOWN', Monitor, process, _, {names, Answer}} -> Answer;
        {'DOWN', Monitor, process, _, Reason} -> exit(Reason)
    end.

-spec ask(Prefix :: binary(), [node()], Within_ms :: pos_integer()) -> no_return().
ask(Prefix, Nodes, Within_ms) ->
    Until = canal_lock_quorum_nif:now() + Within_ms * 1_000_000,
    Add = fun(Node, Asked) ->
        gen_server:reqids_add(canal_lock_quorum_voter:ask_names(Node, Prefix), Node, Asked)
    end,
    exit({names, collect(lists:foldl(Add, gen_server:reqids_new(), Nodes), Until, #{})}).

%% `Answers' has how many voters of each view have answered, and the names. The process can be suspended when an answer
%% arrives, and the clock of `receive' can stop while the machine sleeps. So each answer is followed by a look at the
%% clock of the leases.
collect(Asked, Until, Answers) ->
    Left_ms = (Until - canal_lock_quorum_nif:now()) div 1_000_000,
    Response = gen_server:receive_response(Asked, max(0, Left_ms), true),
    case {Response, canal_lock_quorum_nif:now() < Until} of
        {{{reply, {View, Quorum, Names}}, _, Others}, true} ->
            {Count, Before} = maps:get(View, Answers, {1, []}),
            case Count of
                Quorum -> {ok, lists:usort([binary_to_term(Name) || Name <- Names ++ Before])};
                _ -> collect(Others, Until, Answers#{View => {Count + 1, Names ++ Before}})
            end;
        {{_, _, Others}, true} ->
            collect(Others, Until, Answers);
        _ ->
            {error, no_quorum}
    end.
