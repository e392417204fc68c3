%% @private
%% Revokes the locks of a name, and waits until all members have confirmed that those locks have ended.
-module(canal_lock_quorum_force).

-export([unlock/2]).

%% How long one question to the members may take.
-define(ASK_MS, 1000).

%% The pause between two questions: doubles from the first to the last. A revocation usually takes two round trips.
-define(FIRST_PAUSE_MS, 2).
-define(LAST_PAUSE_MS, 200).

-record(revocation, {
    name :: canal_lock_quorum_names:name(),
    %% When it was requested.
    at_us :: integer(),
    %% After this time a lock that is not confirmed has expired, unless the request was lost.
    deadline_us :: integer(),
    %% The locks that were held, and the nodes that have not confirmed that they have ended.
    ids :: [canal_lock_quorum_lock:id()],
    holding :: [node()],
    %% The nodes that have not answered since the request, and may hold more of its locks.
    silent :: [node()],
    %% The members whose clients are not known, and the nodes that were asked.
    unknown :: [node()],
    asked :: [node()]
}).

%% `Encoded' is the name as bytes.
-spec unlock(canal_lock_quorum_names:name(), Encoded :: binary()) -> {ok, not_held | ended} | {error, timeout}.
unlock(Name, Encoded) ->
    {Nodes, NotKnown} = canal_lock_quorum_members:all(?ASK_MS),
    {Answers, NoAnswer} = ask(Nodes, {ids, [Name]}, ?ASK_MS),
    Lease_ms = canal_lock_quorum_agent:revoke(Encoded),
    Now_us = now_us(),
    Locks = lists:append([Held || {_, Held} <- Answers]),
    %% A writer is alone, so no other node holds the name.
    {Silent, Unknown} = case [Id || {Id, write, _} <- Locks] of [] -> {NoAnswer, NotKnown}; _ -> {[], []} end,
    Revocation = #revocation{
        name = Name,
        at_us = Now_us,
        deadline_us = Now_us + 1000 * Lease_ms,
        ids = [Id || {Id, _, _} <- Locks],
        holding = [Node || {Node, [_ | _]} <- Answers],
        silent = Silent,
        unknown = Unknown,
        asked = Nodes
    },
    case {Locks, Silent, Unknown} of
        {[], [], []} -> {ok, not_held};
        _ -> await_end(Revocation, ?FIRST_PAUSE_MS)
    end.

await_end(#revocation{holding = [], silent = [], unknown = []}, _Pause_ms) ->
    {ok, ended};
await_end(Revocation, Pause_ms) ->
    case left_ms(Revocation) of
        Left_ms when Left_ms > 0 ->
            ok = timer:sleep(min(Pause_ms, Left_ms)),
            Asked = ask_silent(ask_holding(ask_unknown(Revocation))),
            await_end(Asked, min(2 * Pause_ms, ?LAST_PAUSE_MS));
        _ ->
            {error, timeout}
    end.

ask_unknown(Revocation = #revocation{unknown = []}) ->
    Revocation;
ask_unknown(Revocation = #revocation{asked = Asked, silent = Silent}) ->
    {Nodes, Unknown} = canal_lock_quorum_members:all(left_ms(Revocation)),
    More = Nodes -- Asked,
    Revocation#revocation{unknown = Unknown, asked = Asked ++ More, silent = Silent ++ More}.

ask_holding(Revocation = #revocation{holding = Nodes, ids = Ids}) ->
    {Answers, NoAnswer} = ask(Nodes, {any, [Ids]}, left_ms(Revocation)),
    Revocation#revocation{holding = [Node || {Node, true} <- Answers] ++ NoAnswer}.

%% Locks that were granted after the request do not count. Clocks of nodes differ, so the age of a lock at an unknown
%% moment between question and answer shows that. If it does not, the node is asked again.
ask_silent(Revocation = #revocation{name = Name, silent = Nodes, at_us = At_us, ids = Ids, holding = Holding}) ->
    Asked_us = now_us(),
    {Answers, NoAnswer} = ask(Nodes, {ids, [Name]}, left_ms(Revocation)),
    Answered_us = now_us(),
    Possible = [
        {Node, Id, Answered_us - Age_us < At_us}
     || {Node, Locks} <- Answers, {Id, _, Age_us} <- Locks, Asked_us - Age_us =< At_us
    ],
    Revocation#revocation{
        ids = [Id || {_, Id, true} <- Possible] ++ Ids,
        holding = lists:usort([Node || {Node, _, true} <- Possible] ++ Holding),
        silent = lists:usort([Node || {Node, _, false} <- Possible] ++ NoAnswer)
    }.

ask(Nodes, Call, Timeout_ms) ->
    canal_lock_quorum_members:ask(Nodes, canal_lock_quorum_held, Call, Timeout_ms).

left_ms(#revocation{deadline_us = Deadline_us}) ->
    max(0, min(?ASK_MS, (Deadline_us - now_us()) div 1000)).

now_us() ->
    erlang:monotonic_time(microsecond).
