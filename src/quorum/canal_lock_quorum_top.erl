%% @private
%% The pictures of `canal_lock_quorum:top/1': the quorum locks as this node sees them. canal_lock_screen draws them.
-module(canal_lock_quorum_top).

-behaviour(canal_lock_screen).

-export([title/0, read/1, explain/1, head/2, sections/2]).

-export_type([data/0]).

-import(canal_lock_screen, [cells/1, duration/1, described/2]).

-type name() :: canal_lock_quorum_names:name().

%% One reading.
-type data() :: #{
    status := canal_lock_quorum:status(),
    busiest := [busy()],
    holders := [{pid(), Locks :: pos_integer(), Oldest_ms :: non_neg_integer()}]
}.

%% A name that requests of this node wait for, and the process of this node that has held it longest, with the number of
%% other ones: there can be several readers.
-type busy() :: {name(), Waiting :: pos_integer(), Longest_ms :: non_neg_integer(), none | {pid(), non_neg_integer()}}.

%% Columns of the holder of a name, and of the state of a member.
-define(PID_CELL, 18).
-define(STATE_CELL, 22).

title() ->
    {"canal_lock_quorum", ""}.

explain(Cause) ->
    canal_lock_quorum_errors:explain(Cause).

%%% Reading

%% The first call has a timeout, and the agent has answered it when the others are made. So a person can end the
%% picture, also if the agent hangs.
read(Rows) ->
    try
        Busiest = canal_lock_quorum_agent:busiest(Rows),
        {read, read(Rows, Busiest, canal_lock_quorum_status:read())}
    catch
        exit:noproc -> {raise, not_started};
        exit:timeout -> {failed, "the agent or the voter of this node does not answer"};
        exit:_ -> {failed, "the agent or the voter of this node has stopped"}
    end.

-spec read(pos_integer(), Busiest, canal_lock_quorum:status()) -> data() when
    Busiest :: [{name(), Waiting :: pos_integer(), Longest_ms :: non_neg_integer()}].
read(Rows, Busiest, Status) ->
    Names = [Name || {Name, _, _} <- Busiest],
    {Held, Holders} = canal_lock_quorum_lock_table:fold(Names, fun add_locks/2, {#{}, #{}}),
    Now_us = erlang:system_time(microsecond),
    #{
        status => Status,
        busiest => [
            {Name, Waiting, Longest_ms, holder(maps:get(Name, Held, none))}
         || {Name, Waiting, Longest_ms} <- Busiest
        ],
        holders => [
            %% The wall clock can be set back.
            {Pid, -Negative, max(0, Now_us - Since_us) div 1000}
         || {Negative, Since_us, Pid} <- most_locks(Rows, Holders)
        ]
    }.

%% Of all locks: by name, their number and the oldest one; and by holder.
add_locks(Piece, Before) ->
    lists:foldl(
        fun({Pid, Since_us, Names}, {Held, Holders}) ->
            {
                lists:foldl(fun(Name, Others) -> add({Since_us, Pid}, Name, Others) end, Held, Names),
                add(Since_us, Pid, Holders)
            }
        end,
        Before,
        Piece
    ).

add(Since, Key, Counts) ->
    maps:update_with(Key, fun({Count, Oldest}) -> {Count + 1, min(Since, Oldest)} end, {1, Since}, Counts).

holder(none) -> none;
holder({Count, {_Since_us, Pid}}) -> {Pid, Count - 1}.

%% Equal numbers are in the order of the grants, so their rows do not change between pictures.
most_locks(Rows, Holders) ->
    Add = fun(Pid, {Count, Since_us}, Ranking) -> canal_lock_ranking:add({-Count, Since_us, Pid}, Ranking) end,
    canal_lock_ranking:least(maps:fold(Add, canal_lock_ranking:new(Rows), Holders)).

%%% Showing

-spec head(canal_lock_screen:last(), data()) -> [unicode:chardata()].
head(Last, #{status := Status}) ->
    #{held := Held, waiting := Waiting, pending_unlocks := Pending} = Status,
    Growth = growth(Last, Status),
    Rate = fun(Name) -> canal_lock_screen:rate(Name, Growth, Last) end,
    [
        cells(["held", "waiting", "pending"]),
        cells([Held, Waiting, Pending]),
        cells(["granted/s", "passed/s", "mean wait", "refused/s", "lost/s"]),
        cells([Rate(granted), Rate(passed), mean_wait(Growth), Rate(refused), Rate(lost)]),
        ["quorum: ", quorum(Status), "; ", voting(Status), view(Status)]
    ].

view(#{view := none}) -> "; no view";
view(#{view := #{number := Number}}) -> ["; view ", integer_to_list(Number)].

growth(none, _) ->
    #{};
growth({#{status := Before}, _}, Status) ->
    canal_lock_screen:growth([granted, passed, refused, lost, wait_us], counts(Before), counts(Status)).

counts(#{totals := Totals}) ->
    Refused = [Count || {Total, Count} <- maps:to_list(Totals), lists:prefix("refused_", atom_to_list(Total))],
    Totals#{refused => lists:sum(Refused)}.

mean_wait(#{granted := Granted, wait_us := Wait_us}) when Granted > 0 -> duration(Wait_us / Granted / 1000);
mean_wait(_) -> "-".

quorum(#{quorum := true}) -> "yes";
quorum(#{quorum := false}) -> "no".

voting(#{voting := true}) -> "this node votes";
voting(#{role := client}) -> "this node is a client";
voting(Status) -> ["this node does not vote", waits_for(Status)].

waits_for(#{waits_for := []}) -> "";
waits_for(#{waits_for := Nodes}) -> [", it waits for ", lists:join(", ", [atom_to_list(Node) || Node <- Nodes])].

-spec sections(data(), canal_lock_screen:show()) -> [canal_lock_screen:section()].
sections(#{status := Status, busiest := Busiest, holders := Holders}, Show) ->
    #{members := Members, clients := Clients} = Status,
    [
        {unless_empty, ["waiting", "longest wait", {"holder here", ?PID_CELL}], "name", Busiest,
            fun({Name, Waiting, Longest_ms, Holder}) ->
                {[Waiting, duration(Longest_ms), {shown(Holder, Show), ?PID_CELL}], Show(Name)}
            end},
        {always, ["locks", "oldest"], "holder", Holders, fun({Pid, Locks, Oldest_ms}) ->
            {[Locks, duration(Oldest_ms)], described(Pid, Show)}
        end},
        {always, ["votes valid", {"state", ?STATE_CELL}], "member", members(Members),
            fun({_Rank, Node, State, Valid_ms}) ->
                {[duration(Valid_ms), {State, ?STATE_CELL}], atom_to_list(Node)}
            end},
        {unless_empty, ["votes", "waiting", "heard"], "client", clients(Clients),
            fun({Negative, Node, Waiting, Heard_ms}) ->
                {[-Negative, Waiting, [duration(Heard_ms), " ago"]], atom_to_list(Node)}
            end}
    ].

shown(none, _) -> "-";
shown({Pid, 0}, Show) -> Show(Pid);
shown({Pid, Others}, Show) -> [Show(Pid), " +", integer_to_list(Others)].

%% Those that need attention first. A member that is silent is connected, and its voter does not answer.
members(Members) ->
    lists:sort([
        begin
            {Rank, State} = state(Member),
            {Rank, Node, State, Valid_ms}
        end
     || Member = #{node := Node, valid_ms := Valid_ms} <- Members
    ]).

state(#{connected := true, answers := false}) -> {1, "silent"};
state(#{connected := false}) -> {2, "not connected"};
state(_) -> {3, "connected"}.

%% Most votes first.
clients(Clients) ->
    lists:sort([
        {-Votes, Node, Waiting, Heard_ms}
     || #{node := Node, votes := Votes, waiting := Waiting, heard_ms := Heard_ms} <- Clients
    ]).
