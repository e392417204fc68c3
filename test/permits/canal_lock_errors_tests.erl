%% Errors name the wrong argument and the reason (EEP 54): in the stack trace, in the shell, and in Elixir.
-module(canal_lock_errors_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_key_terms, [not_counts/0]).

-define(POSITIVE, "be a positive integer").
-define(COUNT, "be a non-negative integer").
-define(MS, "be a positive integer below 2^32 (milliseconds)").
-define(TIMEOUT, "be a non-negative integer below 2^32 (milliseconds) or infinity").
-define(TIMEOUT_OR_OPTIONS,
    "be a non-negative integer below 2^32 (milliseconds), infinity, or a map of options"
).
-define(OR_OPTIONS, ", or a map of options").
-define(FUN, "be a function of arity 0").
-define(LOCAL_PID, "be a pid of this node").
-define(NODE, "be the name of a node, an atom").

-define(CHILD, ?POSITIVE ", a map of options, or {MaxPer, Options}").

-define(START_OPTIONS, "keep_on_crash, sweep_interval_ms, max_waiting").

-define(NOT_STARTED,
    <<"canal_lock is not started on this node: start the application, or call canal_lock:start_link/0">>
).

errors_test_() ->
    [
        test_setup:tests([
            {"a wrong argument is named, and nothing has changed", fun wrong_arguments/0},
            {"the shell names a wrong argument", fun shell/0},
            {"a key that is too large is explained, and is not in the stack trace", fun too_large/0},
            {"P9: too many buckets are explained", fun too_many_buckets/0},
            {"Elixir names a wrong argument", fun elixir/0}
        ]),
        test_setup:tests(without_manager, [
            {"a wrong argument of a start is named, and nothing is started", fun wrong_starts/0},
            {"calls before the start are explained", fun not_started/0},
            {"calls after the stop are explained", fun stopped/0},
            {"a wrong argument is named before the start, too", fun wrong_and_not_started/0},
            {"the shell explains a missing start and an unknown option", fun shell_without_manager/0},
            {"child_spec/1 returns what a supervisor accepts", fun child_spec/0},
            {"format_error/2 accepts any stack frame", fun foreign_frames/0},
            {"a wrong argument of any size is shown in at most 250 characters", fun long_arguments/0},
            {"an explanation loads no native library", fun no_native_library/0}
        ])
    ].

%% The text of a wrong argument or option.
must(Name, Must, Value) ->
    unicode:characters_to_binary(io_lib:format("~ts must ~ts, got: ~0tp", [Name, Must, Value])).

%%% Wrong arguments

wrong_arguments() ->
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    Before = maps:remove(memory, canal_lock:info()),
    [is_explained(Function, Arguments, Texts) || {Function, Arguments, Texts} <- calls()],
    ?assertEqual(Before, maps:remove(memory, canal_lock:info())),
    ?assertEqual([{db, 1}], canal_lock:held()),
    %% No fun was called.
    ?assertEqual([], test_await:messages()).

calls() ->
    Fun = fun() -> self() ! called end,
    Numbers = [
        {Function, [Key, MaxPer, Buckets], numbers(2, MaxPer, Buckets, Or)}
     || {Function, Or} <- [{acquire, ?OR_OPTIONS}, {release, ""}, {request, ?OR_OPTIONS}, {resize, ""}],
        Key <- [db, new, "string", #{}, -1],
        {MaxPer, Buckets} <- pairs(),
        Or =:= "" orelse not is_map(Buckets)
    ] ++
        [
            {Function, [Key, MaxPer, Buckets], numbers(2, MaxPer, Buckets, Or)}
         || {Function, Or} <- [{acquire, ?OR_OPTIONS}, {release, ""}],
            {_, Key} <- test_key_terms:all(),
            {MaxPer, Buckets} <- [{-1, 1}, {1, three}]
        ],
    With = [
        {with_permit, [db, MaxPer, Buckets, Action],
            maps:merge(Texts, maps:from_list([{4, must("Fun", ?FUN, Action)} || Action =/= Fun]))}
     || {acquire, [db, MaxPer, Buckets], Texts} <- Numbers,
        Action <- [Fun, not_a_fun, fun(_) -> not_called end, fun erlang:self/1, {?MODULE, calls}]
    ],
    %% With node(), acquire_on/4 calls acquire/3, which explains its own arguments.
    On = [
        {acquire_on, [Node, db, MaxPer, Buckets],
            maps:merge(
                maps:from_list([{1, must("Node", ?NODE, Node)} || not is_atom(Node)]), numbers(3, MaxPer, Buckets, "")
            )}
     || {MaxPer, Buckets} <- pairs(),
        Node <- [there@nowhere, "there@nowhere"]
    ],
    %% The same numbers, with one more argument.
    Longer = [
        {Function, Arguments ++ More, without_options(Texts)}
     || {Function, Arguments, Texts} <- Numbers ++ On,
        {Longer, All} <- [
            {acquire, [[5], [infinity], [#{}]]}, {request, [[#{}]]}, {acquire_on, [[0], [#{permits => 2}]]}
        ],
        Longer =:= Function,
        More <- All
    ],
    LongerWith =
        [
            {with_permit, [db, MaxPer, Buckets, 5, Fun], without_options(Texts)}
         || {acquire, [db, MaxPer, Buckets], Texts} <- Numbers
        ] ++
            [
                {with_permit_on, Arguments ++ More, Texts}
             || {acquire_on, Arguments, Texts} <- On, More <- [[Fun], [5, Fun]]
            ],
    Wrong = [Call || {_, _, Texts} = Call <- Numbers ++ With ++ On ++ Longer ++ LongerWith, Texts =/= #{}],
    ?assert(length(Wrong) > 1500),
    Single = [
        {with_permit, 4, [db, 3, 1], [not_a_fun, fun(_) -> not_called end], "Fun", ?FUN},
        {buckets, 2, [db], [0 | not_counts()], "MaxPer", ?POSITIVE},
        {buckets, 2, ["string"], [0 | not_counts()], "MaxPer", ?POSITIVE},
        {with_permit, 5, [db, 3, 1, 5], [not_a_fun, fun(_) -> not_called end], "Fun", ?FUN},
        {with_permit_on, 5, [there@nowhere, db, 3, 1], [not_a_fun, fun(_) -> not_called end], "Fun", ?FUN},
        {with_permit_on, 6, [there@nowhere, db, 3, 1, 5], [not_a_fun, fun(_) -> not_called end], "Fun", ?FUN},
        {cancel, 1, [], [ref, 1, [], self(), {make_ref()}, fun() -> ref end], "Ref", "be a reference"},
        {give, 2, [db], [not_a_pid, 1, [], make_ref(), test_setup:remote_pid(1)], "Pid", ?LOCAL_PID},
        {held, 1, [], [canal_lock, "<0.1.0>", make_ref(), hd(erlang:ports()), 1, []], "Pid", "be a pid"},
        {holder_info, 1, [], [canal_lock, "<0.1.0>", make_ref(), hd(erlang:ports()), 1, []], "Pid", "be a pid"}
    ],
    %% No request is sent: to a node that does not exist, it would raise another error.
    NotNodes = ["there@nowhere", <<"there@nowhere">>, 1, self(), {canal_lock, there@nowhere}],
    Wrong ++
        [
            {Function, Before ++ [Value], #{N => must(Name, Must, Value)}}
         || {Function, N, Before, Values, Name, Must} <- Single, Value <- Values
        ] ++
        [
            {Function, [Node | Others], #{1 => must("Node", ?NODE, Node)}}
         || {Function, Others} <- [
                {acquire_on, [db, 3, 1]}, {acquire_on, [db, 3, 1, 5]}, {release_on, [db]}, {release_on, [db, #{}]},
                {release_on_async, [db]}, {release_on_async, [db, #{}]}
            ],
            Node <- NotNodes
        ] ++
        option_calls() ++
        short_calls() ++
        [{top, [Options], #{1 => Text}} || {Options, Text} <- wrong_view_options()].

%% Calls with a wrong argument that has options, and with several wrong arguments.
option_calls() ->
    Fun = fun() -> self() ! called end,
    Calls = [
        {wrong_waits(), [
            {acquire, [db, 3, 1], []}, {with_permit, [db, 3, 1], [Fun]}, {acquire_on, [there@nowhere, db, 3, 1], []},
            {with_permit_on, [there@nowhere, db, 3, 1], [Fun]}
        ]},
        {wrong_requests(), [{request, [db, 3, 1], []}]},
        {wrong_permits(), [
            {release, [db], []}, {give, [db, self()], []}, {release_on, [there@nowhere, db], []},
            {release_on_async, [there@nowhere, db], []}
        ]}
    ],
    Numbers = #{2 => must("MaxPer", ?COUNT, three), 3 => must("Buckets", ?COUNT, -1)},
    Timeout = must("TimeoutOrOptions", ?TIMEOUT_OR_OPTIONS, soon),
    [
        {Function, Before ++ [Options | After], #{length(Before) + 1 => Text}}
     || {Wrong, Functions} <- Calls, {Function, Before, After} <- Functions, {Options, Text} <- Wrong
    ] ++
        [
            {acquire, [db, three, -1, soon], Numbers#{4 => Timeout}},
            {with_permit, [db, three, -1, soon, no_fun], Numbers#{4 => Timeout, 5 => must("Fun", ?FUN, no_fun)}},
            {request, [db, three, -1, []], Numbers#{4 => must("Options", "be a map", [])}},
            {give, [db, me, []], #{2 => must("Pid", ?LOCAL_PID, me), 3 => must("Options", "be a map", [])}},
            {release_on, [1, db, []], #{1 => must("Node", ?NODE, 1), 3 => must("Options", "be a map", [])}}
        ].

%% Calls with one limit or with a capacity that is a function.
short_calls() ->
    Fun = fun() -> self() ! called end,
    NotLimits = [NotMap || NotMap <- not_counts(), not is_map(NotMap)],
    Limit = fun(Value) -> #{2 => must("Limit", ?COUNT ", or a map with the option capacity", Value)} end,
    ByFunction = [
        {#{}, <<"the option capacity is missing; it must " ?FUN>>},
        {#{capacity => 3}, must("the option capacity", ?FUN, 3)},
        {#{capacity => Fun, permits => 0}, must("the option permits", ?POSITIVE, 0)}
    ],
    [{Function, [db, Value | After], Limit(Value)} || {Function, After} <- short_forms(Fun), Value <- NotLimits] ++
        [
            {Function, [db, Options | After], #{2 => Text}}
         || {Function, After} <- short_forms(Fun), {Options, Text} <- ByFunction
        ] ++
        [
            {request, [db, #{capacity => Fun, timeout_ms => 5}], #{
                2 => <<"unknown option timeout_ms; the options are capacity, permits, max_waiting">>
            }},
            {with_permit, [db, 3, not_a_fun], #{3 => must("Fun", ?FUN, not_a_fun)}}
        ] ++
        [{resize, [db, Value], #{2 => must("Limit", ?COUNT, Value)}} || Value <- not_counts()] ++
        [
            {Function, [db, Value, #{} | After], #{2 => must("Limit", ?COUNT, Value)}}
         || {Function, After} <- short_forms(Fun), Value <- not_counts()
        ] ++
        [
            {Function, [db, 3, Options | After], #{3 => Text}}
         || {Function, After} <- short_forms(Fun),
            {Options, Text} <- case Function of request -> wrong_requests(); _ -> wrong_waits() end,
            is_map(Options)
        ].

short_forms(Fun) ->
    [{acquire, []}, {request, []}, {with_permit, [Fun]}].

wrong_waits() ->
    Timeouts = [-1, -(1 bsl 70), 1 bsl 32, 1 bsl 70, 5.0, soon, [], [{timeout_ms, 5}], "5", {5}, self()],
    [{Timeout, must("TimeoutOrOptions", ?TIMEOUT_OR_OPTIONS, Timeout)} || Timeout <- Timeouts] ++
        wrong_values(timeout_ms, ?TIMEOUT, [-1, 1 bsl 32, 1 bsl 70, 5.0, never, undefined, [], #{}]) ++
        wrong_request_values() ++
        unknown([timeout, wait_ms, {timeout_ms}], "timeout_ms, permits, max_waiting").

wrong_requests() ->
    not_maps([[], [{permits, 2}], permits, 5, infinity]) ++
        wrong_request_values() ++
        unknown([timeout_ms, keep_on_crash], "permits, max_waiting").

wrong_request_values() ->
    Limit = "be a non-negative integer or infinity",
    wrong_values(permits, ?POSITIVE, [0 | not_counts()]) ++
        wrong_values(max_waiting, Limit, not_counts() -- [infinity]).

wrong_permits() ->
    not_maps([[], [{permits, 2}], permits, 2]) ++
        wrong_values(permits, ?POSITIVE, [0 | not_counts()]) ++
        unknown([permit, timeout_ms, max_waiting], "permits").

unknown(Names, Known) ->
    [
        {#{Name => 1}, iolist_to_binary(io_lib:format("unknown option ~0p; the options are ~s", [Name, Known]))}
     || Name <- Names
    ].

pairs() ->
    [{Wrong, 1} || Wrong <- not_counts()] ++ [{1, Wrong} || Wrong <- not_counts()] ++
        [{Wrong, 1 bsl 70} || Wrong <- not_counts()] ++ [{0, Wrong} || Wrong <- not_counts()] ++
        [{Wrong, Other} || Wrong <- not_counts(), Other <- [-1, three]].

%% The texts of MaxPer and Buckets, if MaxPer is the argument of this position. `Or' is what Buckets can be besides.
numbers(Position, MaxPer, Buckets, Or) ->
    maps:from_list([
        {N, must(Name, Must, Value)}
     || {N, Name, Must, Value} <- [
            {Position, "MaxPer", ?COUNT, MaxPer}, {Position + 1, "Buckets", ?COUNT ++ Or, Buckets}
        ],
        not (is_integer(Value) andalso Value >= 0)
    ]).

%% The texts of a longer call, in which Buckets cannot be options.
without_options(Texts) ->
    maps:map(fun(_, Text) -> iolist_to_binary(string:replace(Text, ?OR_OPTIONS, "")) end, Texts).

wrong_starts() ->
    lists:foreach(fun({Function, Arguments, Texts}) ->
        is_explained(Function, Arguments, Texts),
        ?assertEqual(undefined, whereis(canal_lock))
    end, starts()).

starts() ->
    NotPositive = [0 | not_counts()],
    NotMaxPer = [NotMap || NotMap <- NotPositive, not is_map(NotMap)],
    Positive = fun(MaxPer) -> must("MaxPer", ?POSITIVE, MaxPer) end,
    [{start_link, [MaxPer], #{1 => must("MaxPer", ?POSITIVE " or a map of options", MaxPer)}} || MaxPer <- NotMaxPer] ++
        [{start_link, [MaxPer, #{}], #{1 => Positive(MaxPer)}} || MaxPer <- NotPositive] ++
        [
            {Function, [Options], #{1 => Text}}
         || {Options, Text} <- wrong_options("max_per, " ?START_OPTIONS),
            is_map(Options),
            Function <- [start_link, child_spec]
        ] ++
        [{start_link, [3, Options], #{2 => Text}} || {Options, Text} <- wrong_options()] ++
        [{start_link, [three, Options], #{1 => Positive(three), 2 => Text}} || {Options, Text} <- wrong_options()] ++
        [
            {child_spec, [Argument], #{1 => must("MaxPer", ?CHILD, Argument)}}
         || Argument <- lists:delete({1, 2}, NotMaxPer) ++ [{3, #{}, 1}]
        ] ++
        [{child_spec, [{MaxPer, #{}}], #{1 => Positive(MaxPer)}} || MaxPer <- NotPositive] ++
        [{child_spec, [{3, Options}], #{1 => Text}} || {Options, Text} <- wrong_options()].

wrong_options() ->
    wrong_options(?START_OPTIONS).

wrong_options(Known) ->
    Unknown = fun(Name) -> unicode:characters_to_binary(["unknown option ", Name, "; the options are ", Known]) end,
    not_maps([[], [{keep_on_crash, true}], keep_on_crash, true, {}, 5000]) ++
        wrong_values(keep_on_crash, "be true or false", [1, "true", undefined, [], #{}]) ++
        wrong_values(sweep_interval_ms, ?MS, [0, -1, 1 bsl 32, 5000.0, infinity, "5000"]) ++
        wrong_values(max_waiting, ?COUNT, not_counts()) ++
        [
            {#{keep_on_crsh => true}, Unknown("keep_on_crsh")},
            {#{keep_on_crash => true, sweep_interval => 5000}, Unknown("sweep_interval")},
            {#{"keep_on_crash" => true}, Unknown("\"keep_on_crash\"")},
            {#{'ключ' => 1}, Unknown("'ключ'")}
        ].

wrong_view_options() ->
    NotPositive = [0 | not_counts()],
    not_maps([[], [{rows, 3}], rows, 1000]) ++
        wrong_values(interval_ms, ?MS, [1 bsl 32, 1 bsl 70 | NotPositive]) ++
        wrong_values(rows, ?POSITIVE, NotPositive) ++
        wrong_values(show, "be a function of arity 1", [inspect, fun() -> "" end, fun(_, _) -> "" end]) ++
        [
            {#{Name => 1000}, <<"unknown option ", Text/binary, "; the options are interval_ms, rows, show">>}
         || {Name, Text} <- [{interval, <<"interval">>}, {keep_on_crash, <<"keep_on_crash">>}]
        ].

not_maps(Values) ->
    [{Value, must("Options", "be a map", Value)} || Value <- Values].

wrong_values(Option, Must, Values) ->
    [{#{Option => Value}, must(["the option ", atom_to_list(Option)], Must, Value)} || Value <- Values].

%% The called function is on top of the stack trace, with its arguments and the module that explains them.
is_explained(Function, Arguments, Texts) ->
    {Class, Reason, Stack} = failure(fun() -> apply(canal_lock, Function, Arguments) end),
    ?assertMatch({error, badarg, [{canal_lock, Function, Arguments, _} | _]}, {Class, Reason, Stack}),
    ?assertEqual({Function, Arguments, Texts}, {Function, Arguments, explanation(Reason, Stack)}).

failure(Call) ->
    try Call() of
        Answer -> error({no_failure, Answer})
    catch
        Class:Reason:Stack -> {Class, Reason, Stack}
    end.

%% As the shell asks for it.
explanation(Reason, [{_, _, _, Info} | _] = Stack) ->
    {error_info, #{module := Module} = ErrorInfo} = lists:keyfind(error_info, 1, Info),
    Function = maps:get(function, ErrorInfo, format_error),
    Module:Function(Reason, Stack).

shell() ->
    Node = must("Node", ?NODE, "there@nowhere"),
    shows(
        [
            {2, must("MaxPer", ?COUNT, 3.0)},
            {3, must("Buckets", ?COUNT ?OR_OPTIONS, one)},
            {4, must("Fun", ?FUN, not_a_fun)}
        ],
        fun() -> canal_lock:with_permit(db, 3.0, one, not_a_fun) end
    ),
    shows([{4, must("the option permits", ?POSITIVE, 0)}], fun() -> canal_lock:acquire(db, 3, 1, #{permits => 0}) end),
    shows([{1, Node}, {4, must("Buckets", ?COUNT, one)}], fun() ->
        canal_lock:acquire_on("there@nowhere", db, 3, one)
    end).

shell_without_manager() ->
    Unknown = <<"unknown option keep_on_crsh; the options are " ?START_OPTIONS>>,
    shows([{2, Unknown}], fun() -> canal_lock:start_link(3, #{keep_on_crsh => true}) end),
    shows([{1, must("MaxPer", ?CHILD, three)}], fun() -> canal_lock:child_spec(three) end),
    shows([{general, ?NOT_STARTED}], fun() -> canal_lock:acquire(db, 3, 1) end),
    shows([{general, ?NOT_STARTED}], fun canal_lock:info/0).

shows(Expected, Call) ->
    {Class, Reason, Stack} = failure(Call),
    Text = unicode:characters_to_binary(erl_error:format_exception(Class, Reason, Stack)),
    Lines = [Line || <<"*** ", Line/binary>> <- [string:trim(Line) || Line <- string:split(Text, "\n", all)]],
    ?assertEqual([line(Which, Explanation) || {Which, Explanation} <- Expected], Lines).

line(general, Explanation) -> Explanation;
line(Number, Explanation) -> <<"argument ", (integer_to_binary(Number))/binary, ": ", Explanation/binary>>.

%%% Not started

%% Calls of all functions that need a table.
calls_of_a_table() ->
    Keys = [db, "string", #{}, lists:duplicate(1000, #{})],
    Fun = fun() -> not_called end,
    Waits = [5, infinity, #{}, #{timeout_ms => 5, permits => 2}],
    [{Function, [Key, 3, 1]} || Function <- [acquire, release, request, resize], Key <- Keys] ++
        [{acquire, [Key, 0, 1]} || Key <- Keys] ++
        [{acquire, [Key, MaxPer, 1, Wait]} || Key <- Keys, MaxPer <- [0, 3], Wait <- Waits] ++
        [{request, [Key, MaxPer, 1, #{permits => 2}]} || Key <- Keys, MaxPer <- [0, 3]] ++
        [{with_permit, [Key, 3, 1, Fun]} || Key <- Keys] ++
        [{with_permit, [Key, 3, 1, Wait, Fun]} || Key <- Keys, Wait <- [0 | Waits]] ++
        [{Function, [Key]} || Function <- [release, count, holders, waiting], Key <- Keys] ++
        [{release, [Key, #{permits => 2}]} || Key <- Keys] ++
        [{give, [Key, self()]} || Key <- Keys] ++
        [{give, [Key, self(), #{permits => 2}]} || Key <- Keys] ++
        [{buckets, [Key, 3]} || Key <- Keys] ++
        [{held, [self()]}, {holder_info, [self()]}] ++
        [{Function, []} || Function <- [held, keys, info, audit, top]] ++
        [{top, [#{}]}].

not_started() ->
    [is_explained(Function, Arguments, #{general => ?NOT_STARTED}) || {Function, Arguments} <- calls_of_a_table()],
    ?assertMatch(
        {error, badarg, [{canal_lock, acquire, [db, 3, 1], _} | _]},
        failure(fun() -> canal_lock:acquire_on(node(), db, 3, 1) end)
    ),
    %% A request of a closed table does not wait.
    ?assertEqual({error, not_waiting}, canal_lock:cancel(make_ref())),
    ?assertExit(noproc, canal_lock:stop()).

stopped() ->
    {ok, _} = canal_lock:start_link(3),
    {acquired, 1} = canal_lock:acquire(db, 3, 1),
    ok = canal_lock:stop(),
    not_started().

%% So the caller does not correct one error only to meet the next one.
wrong_and_not_started() ->
    [
        is_explained(Function, Arguments, Texts)
     || {Function, Arguments, Texts} <- calls(),
        not lists:member(Function, [held, holder_info, acquire_on, release_on, release_on_async, with_permit_on])
    ].

%%% Limits

%% 40 list cells in memory, but 2^40 for a traversal. The VM also traverses the reason of an exit, for each link and
%% monitor and for the logger. So the key must not be in the error. This test must not print it either.
too_large() ->
    Shared = lists:foldl(fun(_, Part) -> [Part | Part] end, [], lists:seq(1, 40)),
    Calls = [
        {acquire, 3, fun() -> canal_lock:acquire(Shared, 3, 1) end},
        {acquire, 4, fun() -> canal_lock:acquire(Shared, 3, 1, 5) end},
        {acquire, 4, fun() -> canal_lock:acquire(Shared, 3, 1, #{permits => 2}) end},
        {request, 3, fun() -> canal_lock:request(Shared, 3, 1) end},
        {resize, 3, fun() -> canal_lock:resize(Shared, 3, 1) end},
        {waiting, 1, fun() -> canal_lock:waiting(Shared) end},
        {release, 2, fun() -> canal_lock:release(Shared, #{permits => 2}) end},
        {give, 2, fun() -> canal_lock:give(Shared, self()) end},
        {with_permit, 4, fun() -> canal_lock:with_permit(Shared, 3, 1, fun() -> not_called end) end},
        {with_permit, 5, fun() -> canal_lock:with_permit(Shared, 3, 1, 5, fun() -> not_called end) end},
        {count, 1, fun() -> canal_lock:count(Shared) end}
    ],
    Failures = [{Function, Arity, failure(Call)} || {Function, Arity, Call} <- Calls],
    Text = <<"there is not enough memory, or the key is larger than half a gigabyte; nothing has changed: "
             "free memory and repeat the call, or use a smaller key">>,
    lists:foreach(fun({Function, Arity, {Class, Reason, Stack}}) ->
        ?assert({Function, Arity, explanation(Reason, Stack)} =:= {Function, Arity, #{general => Text}}),
        ?assert({Function, Class, Reason} =:= {Function, error, system_limit}),
        ?assert({element(1, hd(Stack)), element(2, hd(Stack))} =:= {canal_lock, Function}),
        ?assert(element(3, hd(Stack)) =:= Arity)
    end, Failures),
    ?assertMatch(#{keys := 0, permits := 0}, canal_lock:info()).

too_many_buckets() ->
    {acquired, 1001} = canal_lock:acquire(db, 1001, 1, #{permits => 1001}),
    {error, system_limit, Stack} = failure(fun() -> canal_lock:buckets(db, 1) end),
    ?assertMatch([{canal_lock, buckets, [db, 1], _} | _], Stack),
    Text = <<"MaxPer is too small: the key has more than 1,000 buckets; pass a larger MaxPer, or call count/1">>,
    ?assertEqual(#{2 => Text}, explanation(system_limit, Stack)).

long_arguments() ->
    lists:foreach(fun(Wrong) ->
        {error, badarg, Stack} = failure(fun() -> canal_lock:acquire(db, Wrong, 1) end),
        #{2 := Text} = explanation(badarg, Stack),
        ?assertEqual({0, 1}, binary:match(Text, <<"M">>)),
        ?assert(string:length(Text) =< 250)
    end, [lists:seq(1, 100_000), binary:copy(<<"x">>, 1 bsl 20), -(1 bsl 1_000_000), {1, 2, "\n\e[2J"}]).

%% In a VM of its own, where neither native module is loaded.
no_native_library() ->
    Loaded = test_setup:in_a_vm([], fun() ->
        Calls = [
            {canal_lock, canal_lock_errors, acquire, [db, three, 1]},
            {canal_lock, canal_lock_errors, start_link, [0, #{rows => 1}]},
            {canal_lock_quorum, canal_lock_quorum_errors, lock, [1.0, -1]}
        ],
        lists:foreach(fun({Module, Explainer, Function, Arguments}) ->
            Frame = {Module, Function, Arguments, [{error_info, #{cause => badarg}}]},
            ?assertNotEqual(#{}, Explainer:format_error(badarg, [Frame]))
        end, Calls),
        [Module || Module <- [canal_lock_nif, canal_lock_quorum_nif], code:is_loaded(Module) =/= false]
    end),
    ?assertEqual([], Loaded).

%%% Child specifications and stack frames

child_spec() ->
    lists:foreach(fun({Argument, MaxPer}) ->
        Spec = canal_lock:child_spec(Argument),
        ?assertEqual(ok, supervisor:check_childspecs([Spec])),
        Supervisor = test_setup:supervise(0, [Spec]),
        ?assertMatch(#{max_per := MaxPer}, canal_lock:info()),
        unlink(Supervisor),
        ok = gen_server:stop(Supervisor)
    end, [
        {3, 3}, {1 bsl 70, 1 bsl 70}, {{3, #{}}, 3}, {{3, #{sweep_interval_ms => 16#ffffffff}}, 3},
        {{3, #{max_waiting => 1 bsl 70}}, 3}, {#{}, undefined}, {#{max_per => 5, keep_on_crash => false}, 5}
    ]),
    ?assertEqual(canal_lock:child_spec(#{}), canal_lock:child_spec()).

%% Frames with other causes, without information, and without arguments.
foreign_frames() ->
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
     || Cause <- [not_started, system_limit, not_watched, nif_panicked, version_mismatch]
    ].

%% If Elixir is installed. It spells the number of the argument.
elixir() ->
    case os:find_executable("elixir") of
        false ->
            ok;
        Elixir ->
            Script =
                "message = fn call -> try do call.() rescue error -> IO.puts(Exception.message(error)) end end\n"
                "message.(fn -> :canal_lock.acquire(:db, :three, 1) end)\n"
                "message.(fn -> :canal_lock.count(:db) end)",
            {0, Text} = test_program:run(Elixir, ["-pa", filename:dirname(code:which(canal_lock)), "-e", Script]),
            Wrong = ["2nd argument: ", must("MaxPer", ?COUNT, three)],
            ?assertNotEqual(nomatch, string:find(Text, Wrong)),
            ?assertNotEqual(nomatch, string:find(Text, ?NOT_STARTED))
    end.
