%% The disk of a member: how the state file is written, and a disk that is full, read-only, or hangs.
-module(canal_lock_quorum_disk_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_nodes, [call/2, order/2, worker/1]).
-import(test_quorum_cluster, [await_voting/1, lock/3, start/2, stop/1, unlock_async/2]).

-define(TIMEOUT_S, 120).

%% The timeout of a request that a disk must not delay, and of one that must be granted at last.
-define(SHORT_MS, 1000).
-define(LONG_MS, 60_000).

%% On a node that is started so, with a folder.
with_disk(Title, Possible, Start, Test) ->
    case Possible() of
        true ->
            {setup,
                fun() ->
                    Beside = canal_lock_quorum_state_file_tests:folder(),
                    Folder = filename:join(Beside, "disk"),
                    ok = file:make_dir(Folder),
                    {Beside, Folder, Start(Folder)}
                end,
                fun({Beside, _, Node}) ->
                    test_nodes:stop(Node),
                    canal_lock_quorum_state_file_tests:delete(Beside)
                end,
                fun({_, Folder, Node}) -> [{timeout, ?TIMEOUT_S, {Title, fun() -> Test(Folder, Node) end}}] end};
        {false, Why} ->
            test_setup:skipped(Title, Why)
    end.

%%% Durability

%% After a crash of the machine, the disk has what was synced, and it may have a rename without the writes before it.
durable_test_() ->
    with_disk(
        "a file is synced before it gets its name, and the name before the call returns",
        fun test_preload:possible/0, fun test_quorum_disk:start_preloaded/1, fun durable/2
    ).

durable(Folder, Node) ->
    Path = path(Folder),
    call(Node, fun canal_lock_quorum_nif:load/0),
    Once = [{write, "fences.new"}, {sync, "fences.new"}, {rename, "fences"}, {sync, ""}],
    lists:foreach(fun(Number) ->
        Content = canal_lock_quorum_state_file_tests:content(a@b),
        {ok, true} = call(Node, fun() -> canal_lock_quorum_nif:state_store(Path, Content, Number) end),
        ?assertEqual(lists:append(lists:duplicate(Number, Once)), test_quorum_disk:calls(Folder))
    end, [1, 2]).

path(Folder) ->
    unicode:characters_to_binary(filename:join(Folder, "fences")).

%%% Faults

faults_test_() ->
    [
        with_disk(Title, Possible, Start, fun(Folder, Node) ->
            fault(Reason, {Break, Repair}, Restart, Folder, Node)
        end)
     || {Title, Possible, Start, Break, Repair, Restart, Reason} <- [
            {"a full disk disturbs no member until a restart, and then the voter waits for space",
                fun test_quorum_disk:can_mount/0, fun test_quorum_disk:start_mounted/1,
                fun test_quorum_disk:fill/2, fun test_quorum_disk:free/2, fun starts_without_voter/3, "No space left"},
            {"a read-only disk disturbs no member until a restart, which fails until it can write",
                fun test_quorum_disk:can_mount/0, fun test_quorum_disk:start_mounted/1,
                fun test_quorum_disk:protect/2, fun test_quorum_disk:unprotect/2, fun does_not_start/3, "Read-only"},
            {"a disk that hangs disturbs no member and no scheduler until a restart, and then the voter waits",
                fun test_preload:possible/0, fun test_quorum_disk:start_preloaded/1,
                fun test_quorum_disk:hang/2, fun test_quorum_disk:resume/2, fun starts_without_voter/3,
                "has not returned"}
        ]
    ].

%% Of the last of three members.
fault(Reason, {Break, Repair}, Restart, Folder, C) ->
    [A, B] = [test_nodes:start() || _ <- [1, 2]],
    Nodes = [A, B, C],
    Options = fun(Node, All) -> options(Node, All, C, Folder) end,
    try
        test_quorum_cluster:on(Nodes, Options, fun(_) ->
            Break(C, Folder),
            %% It has stored a mark for millions of fences, and goes on.
            no_member_waits(Nodes),
            stop(B),
            ?assertMatch({ok, _}, lock_once(A, x, ?LONG_MS)),
            start(B, Options(B, Nodes)),
            await_voting(Nodes),
            stop(C),
            Started = Restart(Reason, C, Options(C, Nodes)),
            no_member_waits([A, B | Started]),
            stop(B),
            %% Without B each lock needs the vote of C.
            ?assertMatch({error, _}, lock_once(A, x, ?SHORT_MS)),
            Repair(C, Folder),
            _ = [start(C, Options(C, Nodes)) || Started =:= []],
            test_await:value(ok, fun() -> element(1, lock_once(A, x, ?SHORT_MS)) end),
            start(B, Options(B, Nodes)),
            await_voting(Nodes)
        end)
    after
        [test_nodes:stop(Node) || Node <- [A, B]]
    end.

starts_without_voter(Reason, Node, Options) ->
    Starting = listen(Node),
    start(Node, Options),
    await_report(Reason, Starting, fun() -> ok end),
    ?assertMatch(#{voting := false}, call(Node, fun canal_lock_quorum:status/0)),
    [Node].

does_not_start(Reason, Node, Options = #{state_file := Path}) ->
    {error, {state_file_not_writable, Path, Text}} = call(Node, fun() -> canal_lock_quorum:start_link(Options) end),
    ?assertMatch({_, [_ | _]}, {Text, string:find(unicode:characters_to_list(Text), Reason)}),
    [].

options(Node, Nodes, Node, Folder) ->
    (test_quorum_cluster:options(Nodes))#{state_file => path(Folder)};
options(_, Nodes, _, _) ->
    test_quorum_cluster:options(Nodes).

no_member_waits(Nodes) ->
    [?assertMatch({ok, _}, lock_once(Node, x, ?SHORT_MS)) || _ <- lists:seq(1, 20), Node <- Nodes].

lock_once(Node, Name, Timeout_ms) ->
    Worker = worker(Node),
    Answer = lock(Worker, Name, Timeout_ms),
    _ = [ok = unlock_async(Worker, Name) || {ok, _} <- [Answer]],
    ok = test_nodes:kill_worker(Worker),
    Answer.

%%% Clients

clients_test_() ->
    with_disk(
        "a client gets no vote before the disk says that there are guests, also if the voter is killed then",
        fun test_preload:possible/0, fun test_quorum_disk:start_preloaded/1, fun clients/2
    ).

clients(Folder, Member) ->
    [X, Y, Z] = Clients = [test_nodes:start() || _ <- [1, 2, 3]],
    Options = fun(_, _) -> (options(Member, [Member], Member, Folder))#{clients => all} end,
    OfClient = test_quorum_cluster:client_options([Member]),
    HasGuests = fun() ->
        {ok, Content, _} = call(Member, fun() -> canal_lock_quorum_nif:state_read(path(Folder), node()) end),
        canal_lock_quorum_state_file_tests:guests(Content)
    end,
    try
        test_nodes:introduce([Member | Clients]),
        test_quorum_cluster:on([Member], Options, fun(_) ->
            %% Its file is new.
            test_await:value(false, HasGuests),
            Tracer = worker(Member),
            order(Tracer, fun trace_guests/0),
            test_quorum_disk:hang(Member, Folder),
            [begin start(Client, OfClient), gets_no_lock(Client) end || Client <- [X, Y]],
            test_quorum_disk:resume(Member, Folder),
            [?assertMatch({ok, _}, lock_once(Client, x, ?LONG_MS)) || Client <- [X, Y]],
            ?assertMatch([{store, true}, stored | _], order(Tracer, fun traced_guests/0)),
            test_await:value(false, HasGuests),
            test_quorum_disk:hang(Member, Folder),
            start(Z, OfClient),
            gets_no_lock(Z),
            call(Member, fun() -> test_quorum_cluster:kill_process(canal_lock_quorum_voter) end),
            gets_no_lock(Z),
            test_quorum_disk:resume(Member, Folder),
            ?assertMatch({ok, _}, lock_once(Z, x, ?LONG_MS)),
            [stop(Client) || Client <- Clients]
        end)
    after
        [test_nodes:stop(Client) || Client <- Clients]
    end.

gets_no_lock(Client) ->
    ?assertMatch({error, _}, lock_once(Client, x, ?SHORT_MS)).

%% Of this node's voter, and of the processes that write for it.
trace_guests() ->
    _ = erlang:trace(whereis(canal_lock_quorum_voter), true, [call, set_on_spawn]),
    1 = erlang:trace_pattern({canal_lock_quorum_nif, state_store, 3}, true),
    1 = erlang:trace_pattern({canal_lock_quorum_nif, voter_step, 2}, true),
    ok.

%% The writes with the guest flag, and the events by which the state machine learned of them.
traced_guests() ->
    receive
        {trace, _, call, {canal_lock_quorum_nif, state_store, [_, Content, _]}} ->
            [{store, canal_lock_quorum_state_file_tests:guests(Content)} | traced_guests()];
        {trace, _, call, {canal_lock_quorum_nif, voter_step, [_, Events]}} ->
            [stored || {stored, _} <- Events] ++ traced_guests()
    after 0 ->
        []
    end.

%%% Reports

listen(Node) ->
    Listener = worker(Node),
    order(Listener, fun() -> test_log_listener:start(warning) end),
    Listener.

%% Repeats something until the listener's node has logged this.
await_report(Text, Listener, Do) ->
    test_await:value(true, fun() ->
        Do(),
        order(Listener, fun() -> lists:any(fun(Event) -> is_about(Text, Event) end, test_log_listener:events()) end)
    end),
    order(Listener, fun test_log_listener:stop/0),
    ok = test_nodes:kill_worker(Listener).

is_about(Text, #{msg := {report, Report = #{what := _}}}) ->
    {Format, Values} = canal_lock_quorum_reports:format(Report),
    string:find(io_lib:format(Format, Values), Text) =/= nomatch;
is_about(_, _) ->
    false.
