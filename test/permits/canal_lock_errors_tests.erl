%% A call that raises says which argument is wrong, and why (EEP 54): in the stack trace, in the shell, and in Elixir.
-module(canal_lock_errors_tests).

-include_lib("eunit/include/eunit.hrl").

-define(POSITIVE, <<"not a positive integer">>).
-define(COUNT, <<"not a non-negative integer">>).
-define(OPTIONS, <<"not a map of options">>).
-define(KEEP, <<"keep_on_crash is neither true nor false">>).
-define(INTERVAL, <<"sweep_interval_ms is not a positive integer below 2^32, in milliseconds">>).
-define(LOOK_INTERVAL, <<"interval_ms is not a positive integer below 2^32, in milliseconds">>).
-define(ACTION, <<"not a function of no arguments">>).
-define(PID, <<"not a pid">>).
-define(NODE_NAME, <<"not the name of a node, which is an atom">>).
-define(CHILD, <<"neither MaxPer, a positive integer, nor {MaxPer, Options}">>).

-define(NOT_STARTED, <<"canal_lock is not started: there is no manager, and no table that one has kept">>).

errors_test_() ->
    [
        test_setup:tests([
            {"a wrong argument is named, and nothing has changed", fun wrong_arguments/0},
            {"the shell shows it", fun shell/0},
            {"a key that is too large is explained, and is not in the stack trace", fun too_large/0},
            {"Elixir shows it", fun elixir/0}
        ]),
        test_setup:tests(without_manager, [
            {"a wrong argument of a start is named, and nothing is started", fun wrong_starts/0},
            {"calls before the start are explained", fun not_started/0},
            {"and so are calls after the end", fun stopped/0},
            {"a wrong argument is named before the start, too", fun wrong_and_not_started/0},
            {"the shell shows what is not started, and what is no option", fun shell_without_manager/0},
            {"child_spec/1: what a supervisor takes", fun child_spec/0},
            {"format_error/2 bears what is not ours", fun others/0}
        ])
    ].

%% Which arguments are wrong.
wrong_arguments() ->
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Before = canal_lock:info(),
    [is_explained(Function, Arguments, Faults) || {Function, Arguments, Faults} <- calls()],
    ?assertEqual(Before, canal_lock:info()),
    ?assertEqual([{db, 1}], canal_lock:held()).

calls() ->
    Fun = fun() -> not_called end,
    Numbers = [
        {Function, [Key, MaxPer, Buckets], maps:merge(faults(2, MaxPer, ?COUNT), faults(3, Buckets, ?COUNT))}
     || Function <- [acquire, release],
        Key <- [db, new, "string", #{}, -1],
        {MaxPer, Buckets} <- pairs()
    ],
    With = [
        {with_permit, [db, MaxPer, Buckets, Action], Faults}
     || {acquire, [db, MaxPer, Buckets], NumberFaults} <- Numbers,
        Action <- [Fun, not_a_fun, fun(_) -> not_called end],
        Faults <- [maps:merge(NumberFaults, maps:from_list([{4, ?ACTION} || Action =/= Fun]))]
    ],
    %% Of this node it is `acquire/3' that is called, and that explains.
    On = [
        {acquire_on, [Node, db, MaxPer, Buckets], Faults}
     || {MaxPer, Buckets} <- pairs(),
        Node <- [there@nowhere, "there@nowhere"],
        Faults <- [
            maps:merge(
                maps:from_list([{1, ?NODE_NAME} || not is_atom(Node)]),
                maps:merge(faults(3, MaxPer, ?COUNT), faults(4, Buckets, ?COUNT))
            )
        ]
    ],
    Wrong = [Call || {_, _, Faults} = Call <- Numbers ++ With ++ On, Faults =/= #{}],
    ?assert(length(Wrong) > 500),
    Wrong ++
        [{with_permit, [db, 3, 1, Action], #{4 => ?ACTION}} || Action <- [not_a_fun, fun(_) -> not_called end]] ++
        [{acquire_on, [Node, db, 3, 1], #{1 => ?NODE_NAME}} || Node <- [<<"there@nowhere">>, 1, self()]] ++
        [{release_on, [Node, db], #{1 => ?NODE_NAME}} || Node <- ["there@nowhere", <<"there@nowhere">>, 1, self()]] ++
        [{buckets, [Key, MaxPer], #{2 => ?POSITIVE}} || Key <- [db, new, "string"], MaxPer <- [0 | not_counts()]] ++
        [{held, [Pid], #{1 => ?PID}} || Pid <- [canal_lock, "<0.1.0>", make_ref(), hd(erlang:ports()), 1, []]] ++
        [{top, [Options], #{1 => Fault}} || {Options, Fault} <- bad_view_options()].

pairs() ->
    [{Bad, 1} || Bad <- not_counts()] ++ [{1, Bad} || Bad <- not_counts()] ++
        [{Bad, 1 bsl 70} || Bad <- not_counts()] ++ [{0, Bad} || Bad <- not_counts()] ++
        [{Bad, Other} || Bad <- not_counts(), Other <- [-1, three]].

not_counts() ->
    [-1, -(1 bsl 59) - 1, -(1 bsl 70), 1.0, 0.0, three, infinity, [], "3", <<3>>, {3}, #{}, self(), make_ref()].

faults(Number, Argument, Fault) ->
    case is_integer(Argument) andalso Argument >= 0 of
        true -> #{};
        false -> #{Number => Fault}
    end.

wrong_starts() ->
    [
        begin
            is_explained(Function, Arguments, Faults),
            ?assertEqual(undefined, whereis(canal_lock))
        end
     || {Function, Arguments, Faults} <- starts()
    ].

starts() ->
    NotPositive = [0 | not_counts()],
    [{start_link, [MaxPer], #{1 => ?POSITIVE}} || MaxPer <- NotPositive] ++
        [{start_link, [MaxPer, #{}], #{1 => ?POSITIVE}} || MaxPer <- NotPositive] ++
        [{start_link, [3, Options], #{2 => Fault}} || {Options, Fault} <- bad_options()] ++
        [{start_link, [three, Options], #{1 => ?POSITIVE, 2 => Fault}} || {Options, Fault} <- bad_options()] ++
        [{child_spec, [Argument], #{1 => ?CHILD}} || Argument <- NotPositive, Argument =/= {3}] ++
        [{child_spec, [Argument], #{1 => ?CHILD}} || Argument <- [{}, {3}, {3, #{}, 1}, #{max_per => 3}]] ++
        [{child_spec, [{MaxPer, #{}}], #{1 => ?POSITIVE}} || MaxPer <- NotPositive] ++
        [{child_spec, [{3, Options}], #{1 => Fault}} || {Options, Fault} <- bad_options()].

bad_options() ->
    [{Options, ?OPTIONS} || Options <- [[], [{keep_on_crash, true}], keep_on_crash, true, {}, 5000]] ++
        [{#{keep_on_crash => Bad}, ?KEEP} || Bad <- [1, "true", undefined, [], #{}]] ++
        [{#{sweep_interval_ms => Bad}, ?INTERVAL} || Bad <- [0, -1, 1 bsl 32, 5000.0, infinity, "5000"]] ++
        [
            {#{keep_on_crsh => true}, <<"no such option: keep_on_crsh">>},
            {#{keep_on_crash => true, sweep_interval => 5000}, <<"no such option: sweep_interval">>},
            {#{"keep_on_crash" => true}, <<"no such option: \"keep_on_crash\"">>},
            {#{'ключ' => 1}, <<"no such option: 'ключ'"/utf8>>}
        ].

bad_view_options() ->
    NotPositive = [0 | not_counts()],
    Options = [{Options, ?OPTIONS} || Options <- [[], [{rows, 3}], rows, 1000]],
    Intervals = [{#{interval_ms => Bad}, ?LOOK_INTERVAL} || Bad <- [1 bsl 32, 1 bsl 70 | NotPositive]],
    Rows = [{#{rows => Bad}, <<"rows is not a positive integer">>} || Bad <- NotPositive],
    Shows = [
        {#{show => Bad, rows => 3}, <<"show is not a function of one argument">>}
     || Bad <- [inspect, fun() -> "" end, fun(_, _) -> "" end]
    ],
    Unknown = [
        {#{interval => 1000}, <<"no such option: interval">>},
        {#{keep_on_crash => true}, <<"no such option: keep_on_crash">>}
    ],
    Options ++ Intervals ++ Rows ++ Shows ++ Unknown.

%% The function that was called heads the stack trace, with its arguments and whom to ask what is wrong with them.
is_explained(Function, Arguments, Faults) ->
    {Class, Reason, Stack} = failure(fun() -> apply(canal_lock, Function, Arguments) end),
    ?assertMatch({error, badarg, [{canal_lock, Function, Arguments, _} | _]}, {Class, Reason, Stack}),
    ?assertEqual({Function, Arguments, Faults}, {Function, Arguments, explanation(Reason, Stack)}).

failure(Call) ->
    try Call() of
        Answer -> error({no_failure, Answer})
    catch
        Class:Reason:Stack -> {Class, Reason, Stack}
    end.

%% As whoever shows an error gets it.
explanation(Reason, [{_, _, _, Info} | _] = Stack) ->
    {error_info, #{module := Module} = ErrorInfo} = lists:keyfind(error_info, 1, Info),
    Function = maps:get(function, ErrorInfo, format_error),
    Module:Function(Reason, Stack).

shell() ->
    shows([{2, ?COUNT}], fun() -> canal_lock:acquire(db, three, 1) end),
    shows([{3, ?COUNT}], fun() -> canal_lock:release(db, 3, -1) end),
    shows([{2, ?COUNT}, {3, ?COUNT}, {4, ?ACTION}], fun() -> canal_lock:with_permit(db, 3.0, one, not_a_fun) end),
    shows([{2, ?POSITIVE}], fun() -> canal_lock:buckets(db, 0) end),
    shows([{1, ?PID}], fun() -> canal_lock:held(canal_lock) end),
    shows([{1, ?NODE_NAME}, {4, ?COUNT}], fun() -> canal_lock:acquire_on("there@nowhere", db, 3, one) end).

shell_without_manager() ->
    shows([{2, <<"no such option: keep_on_crsh">>}], fun() -> canal_lock:start_link(3, #{keep_on_crsh => true}) end),
    shows([{1, ?CHILD}], fun() -> canal_lock:child_spec(three) end),
    shows([{general, ?NOT_STARTED}], fun() -> canal_lock:acquire(db, 3, 1) end),
    shows([{general, ?NOT_STARTED}], fun canal_lock:info/0).

shows(Wanted, Call) ->
    {Class, Reason, Stack} = failure(Call),
    Text = unicode:characters_to_binary(erl_error:format_exception(Class, Reason, Stack)),
    Lines = [Line || <<"*** ", Line/binary>> <- [string:trim(Line) || Line <- string:split(Text, "\n", all)]],
    ?assertEqual([line(Which, Fault) || {Which, Fault} <- Wanted], Lines).

line(general, Explanation) -> Explanation;
line(Number, Fault) -> <<"argument ", (integer_to_binary(Number))/binary, ": ", Fault/binary>>.

%% All that needs a table.
looks_and_calls() ->
    Keys = [db, "string", #{}, lists:duplicate(1000, #{})],
    [{Function, [Key, 3, 1]} || Function <- [acquire, release], Key <- Keys] ++
        [{acquire, [Key, 0, 1]} || Key <- Keys] ++
        [{with_permit, [Key, 3, 1, fun() -> not_called end]} || Key <- Keys] ++
        [{Function, [Key]} || Function <- [release, count, holders], Key <- Keys] ++
        [{buckets, [Key, 3]} || Key <- Keys] ++
        [{held, [self()]}] ++
        [{Function, []} || Function <- [held, keys, info, audit, top]] ++
        [{top, [#{}]}].

not_started() ->
    [is_explained(Function, Arguments, #{general => ?NOT_STARTED}) || {Function, Arguments} <- looks_and_calls()],
    ?assertMatch(
        {error, badarg, [{canal_lock, acquire, [db, 3, 1], _} | _]},
        failure(fun() -> canal_lock:acquire_on(node(), db, 3, 1) end)
    ),
    ?assertExit(noproc, canal_lock:stop()).

stopped() ->
    {ok, _} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    ok = canal_lock:stop(),
    not_started().

%% Who mends the argument first is not sent from one error to the next.
wrong_and_not_started() ->
    [
        is_explained(Function, Arguments, Faults)
     || {Function, Arguments, Faults} <- calls(), not lists:member(Function, [held, acquire_on, release_on])
    ].

%% Forty cells in memory, and 2^40 for whoever walks through them: to the VM, too, which copies the reason of an exit
%% for each link, each monitor and the logger. So it must not be in there. Never shown.
too_large() ->
    Shared = lists:foldl(fun(_, Part) -> [Part | Part] end, [], lists:seq(1, 40)),
    Calls = [
        {acquire, 3, fun() -> canal_lock:acquire(Shared, 3, 1) end},
        {with_permit, 4, fun() -> canal_lock:with_permit(Shared, 3, 1, fun() -> not_called end) end},
        {count, 1, fun() -> canal_lock:count(Shared) end}
    ],
    Failures = [{Function, Arity, failure(Call)} || {Function, Arity, Call} <- Calls],
    Explanation = #{general => <<"no memory, or a key of more than half a gigabyte; nothing has changed">>},
    [
        begin
            ?assert({Function, Arity, explanation(Reason, Stack)} =:= {Function, Arity, Explanation}),
            ?assert({Function, Class, Reason} =:= {Function, error, system_limit}),
            ?assert({element(1, hd(Stack)), element(2, hd(Stack))} =:= {canal_lock, Function}),
            ?assert(element(3, hd(Stack)) =:= Arity)
        end
     || {Function, Arity, {Class, Reason, Stack}} <- Failures
    ],
    ?assertMatch(#{keys := 0, permits := 0}, canal_lock:info()).

child_spec() ->
    [
        ?assertEqual(ok, supervisor:check_childspecs([canal_lock:child_spec(Argument)]))
     || Argument <- [3, 1 bsl 70, {3, #{}}, {3, #{sweep_interval_ms => 1000}}]
    ],
    Options = fun(Argument) ->
        #{id := canal_lock, start := {canal_lock, start_link, [3, Options]}} = canal_lock:child_spec(Argument),
        Options
    end,
    ?assertEqual(#{keep_on_crash => true}, Options(3)),
    ?assertEqual(#{keep_on_crash => true}, Options({3, #{}})),
    ?assertEqual(#{keep_on_crash => false}, Options({3, #{keep_on_crash => false}})),
    ?assertEqual(#{keep_on_crash => true, sweep_interval_ms => 1}, Options({3, #{sweep_interval_ms => 1}})),
    %% What it says starts a manager.
    #{start := {Module, Function, Arguments}} = canal_lock:child_spec({3, #{sweep_interval_ms => 16#ffffffff}}),
    {ok, Manager} = apply(Module, Function, Arguments),
    ?assertEqual(Manager, whereis(canal_lock)),
    ok = canal_lock:stop().

%% Frames of other causes, without information, and without arguments.
others() ->
    [
        ?assertEqual(#{}, canal_lock_errors:format_error(badarg, [Frame, {other, frame, 1, []}]))
     || Frame <- [
            {canal_lock, acquire, [db, three, 1], []},
            {canal_lock, acquire, 3, [{error_info, #{cause => badarg}}]},
            {canal_lock, acquire, [db, three, 1], [{error_info, #{}}]},
            {canal_lock, no_such_function, [db], [{error_info, #{cause => badarg}}]},
            {canal_lock, acquire, [db, 3, 1], [{error_info, #{cause => badarg}}]}
        ]
    ],
    [
        ?assertMatch(
            #{general := <<_, _/binary>>},
            canal_lock_errors:format_error(Cause, [{canal_lock, acquire, 3, [{error_info, #{cause => Cause}}]}])
        )
     || Cause <- [not_started, system_limit, not_watched, nif_panicked]
    ].

%% Where there is Elixir. Its message is of the same words, with the number spelled.
elixir() ->
    case os:find_executable("elixir") of
        false ->
            ok;
        Elixir ->
            Script =
                "message = fn call -> try do call.() rescue error -> IO.puts(Exception.message(error)) end end\n"
                "message.(fn -> :canal_lock.acquire(:db, :three, 1) end)\n"
                "message.(fn -> :canal_lock.count(:db) end)",
            Text = output(Elixir, ["-pa", filename:dirname(code:which(canal_lock)), "-e", Script]),
            ?assertMatch({match, _}, re:run(Text, "2nd argument: not a non-negative integer")),
            ?assertNotEqual(nomatch, string:find(Text, ?NOT_STARTED))
    end.

output(Program, Arguments) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, binary, exit_status, stderr_to_stdout]),
    output_of(Port, <<>>).

output_of(Port, Output) ->
    receive
        {Port, {data, Data}} -> output_of(Port, <<Output/binary, Data/binary>>);
        {Port, {exit_status, Status}} when Status =:= 0 -> Output
    end.
