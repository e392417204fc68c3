%% Wrong calls of the quorum locks: the error, the explanation of each wrong argument, and that nothing has changed.
%% Also names as bytes; prop_canal_lock_quorum_names tests the rest of the encoding.
-module(canal_lock_quorum_errors_tests).

-include_lib("eunit/include/eunit.hrl").

-define(LOCK, "be a lock that lock/2 or another call has returned").
-define(NAME, "be a binary, an atom, an integer, or a tuple or list of these").
-define(LONG_NAME, "have at most 1024 bytes in the external term format").
-define(RESERVED_NAME, "not be a tuple that begins with canal_lock_cluster, which is reserved").
-define(NAMES, "be a list of 1 to 64 names").
-define(MS, "be a non-negative integer below 2^32 (milliseconds) or infinity").
-define(FUN, "be a function of arity 1").

%%% Calls

calls_test_() ->
    {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, [
        {lists:flatten(io_lib:format("~s~0p", [Function, Arguments])), fun() ->
            is_explained(Function, Arguments, Musts)
        end}
     || {Function, Arguments, Musts} <- wrong_calls()
    ]}.

start() ->
    {ok, Pid} = canal_lock_quorum:start_link(#{members => [node()]}),
    true = unlink(Pid),
    test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

%% For each wrong argument, by its position, what it must be.
wrong_calls() ->
    Long = binary:copy(<<"x">>, 1025),
    Fun = fun() -> ok end,
    [
        {lock, [1.0, 5000], #{1 => ?NAME}},
        {lock, [#{}, -1], #{1 => ?NAME, 2 => ?MS}},
        {lock, [self(), 1 bsl 32], #{1 => ?NAME, 2 => ?MS}},
        {lock, [{a, [b | c]}, infinite], #{1 => ?NAME, 2 => ?MS}},
        {lock, [<<1:1>>, 0], #{1 => ?NAME}},
        {lock, [Long, 0], #{1 => ?LONG_NAME}},
        {lock, [{canal_lock_cluster, node, node()}, 0], #{1 => ?RESERVED_NAME}},
        {rlock, [{canal_lock_cluster}, 0], #{1 => ?RESERVED_NAME}},
        {lock_many, [[a, {canal_lock_cluster, a}], 0], #{1 => "be a list of names; each name must " ?RESERVED_NAME}},
        {force_unlock, [{canal_lock_cluster, allocator}], #{1 => ?RESERVED_NAME}},
        {rlock, [make_ref(), 0.0], #{1 => ?NAME, 2 => ?MS}},
        {lock_many, [a, 0], #{1 => ?NAMES}},
        {lock_many, [[], 0], #{1 => ?NAMES}},
        {lock_many, [[a | b], 0], #{1 => ?NAMES}},
        {lock_many, [lists:seq(1, 65), 0], #{1 => ?NAMES}},
        {lock_many, [[a, b, a], 0], #{1 => "contain each name once"}},
        {lock_many, [[a, 1.0], 0], #{1 => "be a list of names; each name must " ?NAME}},
        {lock_many, [[a, Long], 0], #{1 => "be a list of names; each name must " ?LONG_NAME}},
        {with_lock, [a, 0, Fun], #{3 => ?FUN}},
        {rlock_many, [[a, a], infinite], #{1 => "contain each name once", 2 => ?MS}},
        {with_rlock, [1.0, x, none], #{1 => ?NAME, 2 => ?MS, 3 => ?FUN}},
        {with_lock, [1.0, x, none], #{1 => ?NAME, 2 => ?MS, 3 => ?FUN}},
        {is_held, [lock], #{1 => ?LOCK}},
        {fence, [{canal_lock_quorum, a, 1, write, [x]}], #{1 => ?LOCK}},
        {unlock, [make_ref()], #{1 => ?LOCK}},
        {unlock_async, [undefined], #{1 => ?LOCK}},
        {force_unlock, [1.0], #{1 => ?NAME}},
        {holder, [#{}], #{1 => ?NAME}},
        {waiting, [self()], #{1 => ?NAME}},
        {child_spec, [[node()]], #{1 => "be a map"}},
        {change_members, [[]], #{1 => "be a list of 1 to 16 nodes"}},
        {change_members, [[node() | a]], #{1 => "be a list of 1 to 16 nodes"}},
        {change_members, [["a@b"]], #{1 => "be a list of 1 to 16 nodes"}},
        {change_members, [[list_to_atom(lists:concat([n, N])) || N <- lists:seq(1, 17)]],
            #{1 => "be a list of 1 to 16 nodes"}},
        {change_members, [[node(), node()]], #{1 => "contain each node once"}},
        {reset_members, [[node(), a, node()]], #{1 => "contain each node once"}},
        {reset_members, [[a@b]], #{1 => "contain this node, " ++ atom_to_list(node())}}
    ].

is_explained(Function, Arguments, Musts) ->
    Before = canal_lock_quorum:status(),
    Texts = maps:map(
        fun(N, Must) -> {lists:nth(N, names(Function)) ++ " must " ++ Must, lists:nth(N, Arguments)} end, Musts
    ),
    {badarg, Function, Explanations} = raised(Function, Arguments),
    ?assertEqual(maps:keys(Texts), maps:keys(Explanations)),
    maps:foreach(fun(N, {Begin, Value}) ->
        Explanation = maps:get(N, Explanations),
        [Said, Got] = string:split(Explanation, ", got: ", trailing),
        ?assertEqual(Begin, Said),
        Full = lists:flatten(io_lib:format("~0tp", [Value])),
        ?assert(Got =:= Full orelse (length(Full) > 100 andalso length(Got) < 250))
    end, Texts),
    Kept = [held, waiting, pending_unlocks],
    ?assertEqual(maps:with(Kept, Before), maps:with(Kept, canal_lock_quorum:status())).

names(Function) when Function =:= lock_many; Function =:= rlock_many -> ["Names", "Timeout_ms"];
names(child_spec) -> ["Options"];
names(Function) when Function =:= change_members; Function =:= reset_members -> ["Members"];
names(Function) ->
    case lists:member(Function, [lock, rlock, with_lock, with_rlock, force_unlock, holder, waiting]) of
        true -> ["Name", "Timeout_ms", "Fun"];
        false -> ["Lock"]
    end.

%% The reason, the function on top of the stack trace, and the explanation, as the shell asks for it.
raised(Function, Arguments) ->
    try apply(canal_lock_quorum, Function, Arguments) of
        Answer -> {answered, Answer}
    catch
        error:Reason:Stack ->
            [{canal_lock_quorum, Raising, _, Info} | _] = Stack,
            #{module := Module} = proplists:get_value(error_info, Info),
            Texts = Module:format_error(Reason, Stack),
            {Reason, Raising, maps:map(fun(_, Text) -> unicode:characters_to_list(Text) end, Texts)}
    end.

%% A reference of this node that is not the handle of a lock, as that of an earlier lifetime of the node.
unknown_lock_test() ->
    _ = start(),
    is_not_held({canal_lock_quorum, make_ref(), 1, write, [x]}),
    ok = canal_lock_quorum:stop().

%%% Not started

not_started_test_() ->
    Text =
        "canal_lock_quorum is not started on this node: "
        "call canal_lock_quorum:start_link/1, or start it in a supervisor",
    [
        {atom_to_list(Function), fun() ->
            ?assertEqual({badarg, Function, #{general => Text}}, raised(Function, Arguments))
        end}
     || {Function, Arguments} <- [
            {lock, [a, 0]},
            {rlock, [a, 0]},
            {lock_many, [[a], 0]},
            {rlock_many, [[a], infinity]},
            {with_lock, [a, 0, fun(_) -> ok end]},
            {with_rlock, [a, 0, fun(_) -> ok end]},
            {force_unlock, [a]},
            {holder, [a]},
            {waiting, [a]},
            {status, []},
            {locks, []}
        ]
    ].

stop_without_a_start_test() ->
    ?assertExit(noproc, canal_lock_quorum:stop()).

a_lock_from_before_a_stop_is_not_held_test() ->
    _ = start(),
    {ok, Lock} = canal_lock_quorum:lock(a, 5000),
    ok = canal_lock_quorum:stop(),
    receive
        {canal_lock_quorum, lost, Lock} -> ok
    after 5000 -> error(not_notified)
    end,
    is_not_held(Lock),
    _ = start(),
    is_not_held(Lock),
    {ok, Other} = canal_lock_quorum:lock(a, 5000),
    is_not_held(Lock),
    ?assert(canal_lock_quorum:is_held(Other)),
    ok = canal_lock_quorum:stop().

is_not_held(Lock) ->
    ?assertNot(canal_lock_quorum:is_held(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock_async(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock(Lock)).

%%% Options

-define(STATE_FILE,
    "be the name of a file that belongs to this node alone (see \"The state file\" in docs/cluster.md)").

-define(LEASE_MS, "be an integer from 1000 to 2^32 - 1 (milliseconds), the same on all nodes").

options_test_() ->
    [
        {Text, fun() -> ?assertEqual({badarg, start_link, #{1 => Text}}, raised(start_link, [Options])) end}
     || {Options, Text} <- [
            {[], "Options must be a map, got: []"},
            {#{}, "the option members is missing; it must be a list of 1 to 16 nodes"},
            must(members, "be a list of 1 to 16 nodes", node()),
            must(members, "be a list of 1 to 16 nodes", [node() | a]),
            must(members, "be a list of 1 to 16 nodes", []),
            must(members, "contain each node once", [node(), node()]),
            {#{members => [node()], voter => false},
                lists:flatten(io_lib:format(
                    "the option members must not contain this node, ~ts, because voter is false, got: ~0tp",
                    [node(), [node()]]
                ))},
            {#{members => [a@b], voter => false, state_file => "f"},
                "the option state_file must not be set, because voter is false, got: \"f\""},
            {#{members => [a@b], voter => false, clients => all},
                "the option clients must not be set, because voter is false, got: all"},
            must(voter, "be true or false", no),
            must(clients, "be none, all, or a list of the nodes that may lock without being members", a@b),
            must(clients, "be none, all, or a list of the nodes that may lock without being members", [a@b | c@d]),
            {#{members => [node()], member => a},
                "unknown option member; the options are members, voter, clients, state_file, reconnect_ms, "
                "lease_ms, run, max_waiting, totals_interval_ms"},
            must(reconnect_ms, "be a positive integer below 2^32 (milliseconds)", 0),
            must(state_file, ?STATE_FILE, 17),
            must(members, "contain names of nodes, without spaces", [node(), 'b c@host']),
            must(state_file, ?STATE_FILE, none),
            must(state_file, ?STATE_FILE, undefined),
            must(max_waiting, "be a positive integer", 0),
            must(totals_interval_ms, "be a positive integer below 2^32 (milliseconds)", 0),
            must(lease_ms, ?LEASE_MS, 999),
            must(lease_ms, ?LEASE_MS, 1000.0),
            must(lease_ms, ?LEASE_MS, 1 bsl 32),
            must(run, "be an integer from 1 to 255", 0),
            must(run, "be an integer from 1 to 255", 256)
        ]
    ].

must(Option, Must, Value) ->
    Text = io_lib:format("the option ~ts must ~ts, got: ~0tp", [Option, Must, Value]),
    {maps:merge(#{members => [node()]}, #{Option => Value}), lists:flatten(Text)}.

already_started_test() ->
    _ = start(),
    Pid = whereis(canal_lock_quorum),
    ?assertEqual({error, {already_started, Pid}}, canal_lock_quorum:start_link(#{members => [node()]})),
    ok = canal_lock_quorum:stop().

%%% Reports

every_report_names_its_details_test() ->
    Details = #{
        node => there@host, members => [here@host], pending_unlocks => 17, why => <<"the reason">>,
        given => [before@host], now => [here@host], number => 18,
        version => "13.1", needed => "13.2", name => mailer,
        path => <<"/a/file">>, after_ms => 2000, lost => 18, suppressed => 19, process => agent, message => hello,
        event => [canal_lock, quorum, totals], class => exit, reason => oops, stacktrace => [frame]
    },
    lists:foreach(fun({What, Names, AllShown}) ->
        {Format, Values} = canal_lock_quorum_reports:format(maps:put(what, What, maps:with(Names, Details))),
        Text = lists:flatten(io_lib:format(Format, Values)),
        ?assertMatch("canal_lock_quorum: " ++ _, Text),
        [?assertNotEqual({What, Shown, nomatch}, {What, Shown, string:find(Text, Shown)}) || Shown <- AllShown]
    end, [
        {up, [node], ["there@host"]},
        {down, [node], ["there@host"]},
        {never_connected, [node, after_ms], ["there@host", "2000 ms"]},
        {silent, [node, pending_unlocks], ["there@host", "17"]},
        {answers, [node], ["there@host"]},
        {stopped, [node], ["there@host"]},
        {started, [node], ["there@host"]},
        {view, [number, members], ["view 18", "[here@host]"]},
        {members_differ, [given, number, now], ["[before@host]", "view 18", "[here@host]"]},
        {renamed, [node, name], ["there@host", "mailer"]},
        {other_cluster, [node], ["there@host"]},
        {other_list, [node], ["there@host"]},
        {refused, [node, suppressed], ["there@host", "19"]},
        {not_allowed, [node, suppressed], ["there@host", "19"]},
        {bad_frame, [node, why, suppressed], ["there@host", "the reason", "19"]},
        {not_stored, [path, why, suppressed], ["/a/file", "the reason", "19"]},
        {store_late, [path, after_ms, suppressed], ["/a/file", "2000", "19"]},
        {file_lost, [path, why], ["/a/file", "the reason"]},
        {lost_member, [path], ["/a/file"]},
        {old_vm, [version, needed], ["erts 13.1", "Run erts 13.2"]},
        {agent_died, [lost], ["18"]},
        {singleton_stopped, [name], ["mailer"]},
        {event_failed, [event, class, reason, stacktrace], ["[canal_lock,quorum,totals]", "exit", "oops", "frame"]},
        {unknown_message, [process, message], ["agent", "hello"]}
    ]).

%% Only a report that follows others of its kind has their number.
first_report_counts_no_others_test() ->
    lists:foreach(fun({What, Details, Sentence}) ->
        Text = fun(Suppressed) ->
            {Format, Values} = canal_lock_quorum_reports:format(Details#{what => What, suppressed => Suppressed}),
            lists:flatten(io_lib:format(Format, Values))
        end,
        [Before, After] = string:split(Text(7), Sentence ++ " since the last report. "),
        ?assertEqual(Before ++ After, Text(0))
    end, [
        {bad_frame, #{node => there@host, why => <<"reason">>}, "7 more have arrived"},
        {refused, #{node => there@host}, "7 more batches were refused"},
        {not_allowed, #{node => there@host}, "7 more of its batches were dropped"},
        {not_stored, #{path => <<"/a/file">>, why => <<"reason">>}, "7 more writes have failed"},
        {store_late, #{path => <<"/a/file">>, after_ms => 2000}, "7 more have been late"}
    ]).

own_voter_test_() ->
    test_log_listener:tests(notice, {timeout, 60, {"a node does not report that its own voter is silent", fun() ->
        Options = #{members => [node()], lease_ms => test_quorum_cluster:lease_ms()},
        {ok, Pid} = canal_lock_quorum:start_link(Options),
        true = unlink(Pid),
        await_answers(true),
        Events = test_log_listener:listening(fun() ->
            ok = sys:suspend(canal_lock_quorum_voter),
            await_answers(false),
            ok = sys:resume(canal_lock_quorum_voter),
            await_answers(true),
            test_log_listener:events()
        end),
        ok = canal_lock_quorum:stop(),
        ?assertEqual([], [What || #{msg := {report, #{what := What}}} <- Events])
    end}}).

%% Whether the voter of this node answers. The agent logs before it answers the next call.
await_answers(Answers) ->
    test_await:value([Answers], fun() ->
        #{members := Members} = canal_lock_quorum_agent:status(),
        [Answering || #{answers := Answering} <- Members]
    end).

old_vm_test_() ->
    test_log_listener:tests(warning, {"a start logs one warning on a VM that can lose wakeups", fun() ->
        lists:foreach(fun({Version, Needed}) ->
            ?assertEqual({Version, Needed}, {Version, canal_lock_quorum_sup:needed_vm(Version)})
        end, [
            {"13.0", ["13.2.2.7"]}, {"13.1.5", ["13.2.2.7"]}, {"13.2", ["13.2.2.7"]}, {"13.2.2.6", ["13.2.2.7"]},
            {"13.2.2.7", []}, {"13.2.2.10", []}, {"14.0-rc3", ["14.2.3"]}, {"14.2.2", ["14.2.3"]}, {"14.2.3", []},
            {"14.2.5.4", []}, {"15.0", []}, {"17.1", []}
        ]),
        Version = erlang:system_info(version),
        Events = test_log_listener:listening(fun() ->
            _ = start(),
            ok = canal_lock_quorum:stop(),
            test_log_listener:events()
        end),
        ?assertEqual(
            [{warning, Version, Needed} || Needed <- canal_lock_quorum_sup:needed_vm(Version)],
            [{Level, Of, Needed} || #{
                level := Level, msg := {report, #{what := old_vm, version := Of, needed := Needed}}
            } <- Events]
        )
    end}).

messages_of_other_libraries_are_ignored_test() ->
    Received = fun(View, From, Bytes) -> canal_lock_quorum_wire:received({canal_lock_quorum, View, From, Bytes}) end,
    ?assertEqual({frame, there@host, 1, 2, <<1>>}, Received({1, 2}, there@host, <<1>>)),
    [
        ?assertEqual(ignored, Received(View, From, Bytes))
     || {View, From, Bytes} <- [
            {1, there@host, <<1>>}, {{-1, 2}, there@host, <<1>>}, {{1 bsl 64, 2}, there@host, <<1>>},
            {{1, x}, there@host, <<1>>}, {{1, 2}, "there@host", <<1>>}, {{1, 2}, '', <<1>>}, {{1, 2}, there@host, [1]}
        ]
    ].

%% Each of the two processes logs the first of many malformed frames of a member, and the next one after a minute.
bad_frames_test_() ->
    test_log_listener:tests(error, [
        {"malformed frames of a member are logged once", fun bad_frames_are_logged_once/0},
        {"malformed frames are logged once per minute and member, with the number of the others",
            fun once_per_minute/0}
    ]).

bad_frames_are_logged_once() ->
    _ = start(),
    Reports = test_log_listener:listening(fun() ->
        [
            Process ! {canal_lock_quorum, {1, 0}, node(), <<255, N>>}
         || Process <- [canal_lock_quorum_agent, canal_lock_quorum_voter], N <- lists:seq(1, 200)
        ],
        %% A process that is stopped does not read what is left in its mailbox.
        First = [test_log_listener:event(), test_log_listener:event()],
        _ = [sys:get_state(Process) || Process <- [canal_lock_quorum_agent, canal_lock_quorum_voter]],
        ok = canal_lock_quorum:stop(),
        First ++ test_log_listener:events()
    end),
    ?assertMatch(
        [#{msg := {report, #{what := bad_frame, suppressed := 0}}}, #{msg := {report, #{what := bad_frame}}}], Reports
    ).

once_per_minute() ->
    {Here, There} = {{bad_frame, here@host}, {bad_frame, there@host}},
    Times_ms = [
        {Here, -5}, {There, -5}, {Here, -4}, {Here, 59_994}, {Here, 59_995}, {There, 59_995}, {Here, 60_000},
        {Here, 119_995}
    ],
    Events = test_log_listener:listening(fun() ->
        _ = lists:foldl(fun({Kind = {_, Node}, Now_ms}, Reported) ->
            Details = #{node => Node, why => integer_to_binary(Now_ms)},
            canal_lock_quorum_log_limit:report_at(Kind, Details, Reported, Now_ms)
        end, #{}, Times_ms),
        test_log_listener:events()
    end),
    ?assertEqual(
        [
            {here@host, <<"-5">>, 0},
            {there@host, <<"-5">>, 0},
            {here@host, <<"59995">>, 2},
            {there@host, <<"59995">>, 0},
            {here@host, <<"119995">>, 1}
        ],
        [
            {Node, Why, Suppressed}
         || #{msg := {report, #{node := Node, why := Why, suppressed := Suppressed}}} <- Events
        ]
    ).

%%% Names

%% The bytes must stay the same in later releases of Erlang: the external term format, version 131.
bytes_test() ->
    [
        ?assertEqual({Name, {ok, Bytes}}, {Name, canal_lock_quorum_names:encode(Name)})
     || {Name, Bytes} <- [
            {a, <<131, 119, 1, $a>>},
            {'ä', <<131, 119, 2, "ä"/utf8>>},
            {<<"a">>, <<131, 109, 1:32, $a>>},
            {"a", <<131, 107, 1:16, $a>>},
            {[], <<131, 106>>},
            {[a], <<131, 108, 1:32, 119, 1, $a, 106>>},
            {17, <<131, 97, 17>>},
            {-1, <<131, 98, -1:32>>},
            {1 bsl 40, <<131, 110, 6, 0, 0, 0, 0, 0, 0, 1>>},
            {{invoice, 17}, <<131, 104, 2, 119, 7, "invoice", 97, 17>>}
        ]
    ].
