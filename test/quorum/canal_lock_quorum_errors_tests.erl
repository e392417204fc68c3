%% Wrong calls of the quorum locks: what is raised, which argument is named and why, and that nothing has changed. And
%% names as bytes; prop_canal_lock_quorum_names has the rest.
-module(canal_lock_quorum_errors_tests).

-include_lib("eunit/include/eunit.hrl").

-define(NO_LOCK, "not a lock, as lock/2, rlock/2 or lock_many/2 answers it").
-define(NO_NAME, "not a name, which is a binary, an atom, an integer, or a tuple or list of names").
-define(NO_MS, "not a non-negative integer below 2^32, in milliseconds").
-define(NO_LIST, "not a list of 1 to 64 names").

%%% Calls

calls_test_() ->
    {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, [
        {lists:flatten(io_lib:format("~s~0p", [Function, Arguments])), fun() -> names(Function, Arguments, Faults) end}
     || {Function, Arguments, Faults} <- wrong_calls()
    ]}.

start() ->
    {ok, Pid} = canal_lock_quorum:start_link(#{members => [node()]}),
    true = unlink(Pid),
    test_await:value(true, fun() -> maps:get(quorum, canal_lock_quorum:status()) end).

wrong_calls() ->
    Long = binary:copy(<<"x">>, 1025),
    [
        {lock, [1.0, 5000], #{1 => ?NO_NAME}},
        {lock, [#{}, -1], #{1 => ?NO_NAME, 2 => ?NO_MS}},
        {lock, [self(), 1 bsl 32], #{1 => ?NO_NAME, 2 => ?NO_MS}},
        {lock, [{a, [b | c]}, infinity], #{1 => ?NO_NAME, 2 => ?NO_MS}},
        {lock, [<<1:1>>, 0], #{1 => ?NO_NAME}},
        {lock, [Long, 0], #{1 => "a name of more than 1024 bytes in the external term format"}},
        {rlock, [make_ref(), 0.0], #{1 => ?NO_NAME, 2 => ?NO_MS}},
        {lock_many, [a, 0], #{1 => ?NO_LIST}},
        {lock_many, [[], 0], #{1 => ?NO_LIST}},
        {lock_many, [[a | b], 0], #{1 => ?NO_LIST}},
        {lock_many, [lists:seq(1, 65), 0], #{1 => ?NO_LIST}},
        {lock_many, [[a, b, a], 0], #{1 => "a name is there twice"}},
        {lock_many, [[a, 1.0], 0], #{1 => ?NO_NAME}},
        {with_lock, [a, 0, fun() -> ok end], #{3 => "not a function of one argument, which is the lock"}},
        {with_lock, [1.0, x, none], #{
            1 => ?NO_NAME, 2 => ?NO_MS, 3 => "not a function of one argument, which is the lock"
        }},
        {held, [lock], #{1 => ?NO_LOCK}},
        {fence, [{canal_lock_quorum, a, 1, 1, write, [x]}], #{1 => ?NO_LOCK}},
        {unlock, [make_ref()], #{1 => ?NO_LOCK}},
        {try_unlock, [undefined], #{1 => ?NO_LOCK}},
        {force_unlock, [1.0], #{1 => ?NO_NAME}},
        {child_spec, [[node()]], #{1 => "not a map of options"}}
    ].

names(Function, Arguments, Faults) ->
    Before = canal_lock_quorum:status(),
    ?assertEqual({badarg, Function, Faults}, raised(Function, Arguments)),
    Kept = [held, waiting, pending_unlocks],
    ?assertEqual(maps:with(Kept, Before), maps:with(Kept, canal_lock_quorum:status())).

%% As the shell finds it out.
raised(Function, Arguments) ->
    try apply(canal_lock_quorum, Function, Arguments) of
        Answer -> {answered, Answer}
    catch
        error:Reason:Stack ->
            [{canal_lock_quorum, Raising, _, Info} | _] = Stack,
            #{module := Module} = proplists:get_value(error_info, Info),
            Told = Module:format_error(Reason, Stack),
            {Reason, Raising, maps:map(fun(_, Sentence) -> binary_to_list(Sentence) end, Told)}
    end.

%% A reference that is no lock's.
made_up_test_() ->
    {setup, fun start/0, fun(_) -> canal_lock_quorum:stop() end, fun() ->
        Lock = {canal_lock_quorum, make_ref(), 1, 1, write, [x]},
        [
            ?assertEqual(
                {badarg, Function, #{1 => "a lock of another node, or of an earlier life of this one"}},
                raised(Function, [Lock])
            )
         || Function <- [held, unlock, try_unlock]
        ]
    end}.

%%% Not started

not_started_test_() ->
    [
        {atom_to_list(Function), fun() ->
            ?assertEqual(
                {badarg, Function, #{general => "canal_lock_quorum is not started on this node"}},
                raised(Function, Arguments)
            )
        end}
     || {Function, Arguments} <- [
            {lock, [a, 0]},
            {rlock, [a, 0]},
            {lock_many, [[a], 0]},
            {with_lock, [a, 0, fun(_) -> ok end]},
            {force_unlock, [a]},
            {status, []},
            {locks, []}
        ]
    ].

stop_of_none_test() ->
    ?assertExit(noproc, canal_lock_quorum:stop()).

%% A lock of before is still one, and nobody's.
stopped_test() ->
    _ = start(),
    {ok, Lock} = canal_lock_quorum:lock(a, 5000),
    ok = canal_lock_quorum:stop(),
    receive
        {canal_lock, lost, Lock} -> ok
    after 5000 -> error(not_told)
    end,
    ?assertEqual(false, canal_lock_quorum:held(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:try_unlock(Lock)),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock(Lock)),
    _ = start(),
    ?assertEqual(false, canal_lock_quorum:held(Lock)),
    {ok, Other} = canal_lock_quorum:lock(a, 5000),
    ?assertEqual({error, not_held}, canal_lock_quorum:unlock(Lock)),
    ?assert(canal_lock_quorum:held(Other)),
    ok = canal_lock_quorum:stop().

%%% Options

options_test_() ->
    [
        {Fault, fun() -> ?assertEqual({badarg, start_link, #{1 => Fault}}, raised(start_link, [Options])) end}
     || {Options, Fault} <- [
            {[], "not a map of options"},
            {#{}, "members is missing: the list of all nodes that vote, the same on each"},
            {#{members => node()}, "members is not a list of nodes"},
            {#{members => [node() | a]}, "members is not a list of nodes"},
            {#{members => []}, "members are 1 to 16 nodes"},
            {#{members => [node() | numbered(16)]}, "members are 1 to 16 nodes"},
            {#{members => [node(), node()]}, "members has a node twice"},
            {#{members => ['a@b']}, "members does not list this node, " ++ atom_to_list(node())},
            {#{members => [node()], member => a}, "no such option: member"},
            {#{members => [node()], reconnect_ms => 0},
                "reconnect_ms is not a positive integer below 2^32, in milliseconds"},
            {#{members => [node()], fence_file => 17}, "fence_file is not the name of a file"},
            {#{members => [node()], rules => []}, "rules is not a map"},
            {#{members => [node()], rules => #{lease_ms => 1}}, "no such rule: lease_ms"},
            {#{members => [node()], rules => #{heartbeat_ms => 2.0}},
                "rules: heartbeat_ms is not a positive integer below 2^32"},
            {#{members => [node()], rules => #{voter_lease_ms => 8000}},
                "rules: voter_lease must be more than 1.03 * holder_lease"}
        ]
    ].

numbered(Count) ->
    [list_to_atom(lists:concat([Number, "@b"])) || Number <- lists:seq(1, Count)].

already_started_test() ->
    _ = start(),
    Pid = whereis(canal_lock_quorum),
    ?assertEqual({error, {already_started, Pid}}, canal_lock_quorum:start_link(#{members => [node()]})),
    ok = canal_lock_quorum:stop().

%%% Names

%% Written down, so that they stay what they are in later releases of Erlang: the external term format, version 131.
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
