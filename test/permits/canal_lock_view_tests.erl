%% What holders/1, held/0,1, keys/0 and audit/0 tell is exact when nothing is going on, and the keys in it are those
%% that went in.
-module(canal_lock_view_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_worker, [holder/1, take/1]).

-define(LEVELS, test_setup:in_soak(1_000_000, 100_000)).
-define(PARTS, 100_000).

%% So many keys are asked for one by one, when there are more.
-define(ASKED, 1000).

view_test_() ->
    test_setup:tests([
        {"nobody holds anything", fun nobody/0},
        {"several processes with several permits of several keys", fun several/0},
        {"processes with few keys and with very many", fun few_and_many_keys/0},
        {"P4: after each release and each death", fun releases_and_deaths/0},
        {"P5: a refusal and a release of what is not held show nowhere", fun nothing_done/0},
        {"P9: a key of any kind comes back as it was", fun kinds/0},
        {"P9: keys of every kind held at once, by several processes", fun kinds_at_once/0},
        {"P9: a key that is very deep, or wide, comes back", fun deep/0},
        {"a key comes back after what it was made from has gone", fun outlives/0},
        {"a process that is dead, never was, or is in the place of a holder", fun not_there/0},
        {"processes of other nodes: those that hold, and those that nobody knows", fun other_nodes/0}
    ]).

nobody() ->
    tells(#{self() => #{}}),
    ?assertEqual([], canal_lock:holders(db)),
    {Worker, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(db, 3, 1) end),
    tells(#{self() => #{}, Worker => #{db => 1}}),
    ?assertEqual([], canal_lock:holders(nobody_knows)),
    ok = test_worker:order(Worker, fun() -> canal_lock:release(db) end),
    %% The key is still there, with nothing out.
    tells(#{self() => #{}, Worker => #{}}),
    ?assertMatch(#{keys := 1}, canal_lock:info()).

several() ->
    Wanted = [
        #{db => 3, {app, 1} => 1},
        #{db => 1},
        #{"string" => 2, #{rare => key} => 1, db => 2, {app, 1} => 4},
        #{}
    ],
    Holdings = maps:from_list([{holder(Held), Held} || Held <- Wanted]),
    tells(Holdings),
    take(#{db => 2, own => 1}),
    tells(Holdings#{self() => #{db => 2, own => 1}}).

%% Two of them are in the process's slot, more in a table of its own; and what is in the slot of one process is in the
%% table of another.
few_and_many_keys() ->
    Counts = [1, 2, 3, 4, 5, 100, 10_000],
    Wanted = [maps:from_list([{{key, N}, 1 + N rem 3} || N <- lists:seq(1, Count)]) || Count <- Counts],
    Reversed = [maps:from_list([{{key, 10_001 - N}, 2} || N <- lists:seq(1, Count)]) || Count <- Counts],
    tells(maps:from_list([{holder(Held), Held} || Held <- Wanted ++ Reversed])).

releases_and_deaths() ->
    Wanted = [maps:from_list([{{key, N}, 2} || N <- lists:seq(1, Count)]) || Count <- [1, 2, 3, 10]],
    Holdings = maps:from_list([{holder(Held), Held} || Held <- [#{other => 1} | Wanted]]),
    Left = lists:foldl(fun released_one_by_one/2, Holdings, maps:keys(Holdings)),
    %% All keys once more, in places that have been used before.
    Again = maps:map(
        fun(Pid, _) ->
            Held = maps:from_list([{{key, N}, 1} || N <- lists:seq(1, 5)]),
            test_worker:order(Pid, fun() -> take(Held) end)
        end,
        Left
    ),
    tells(Again),
    lists:foldl(
        fun(Pid, Before) ->
            ok = test_worker:kill(Pid),
            After = Before#{Pid := #{}},
            test_await:permits(permits(After)),
            test_await:value(holders(After), fun() -> maps:get(holders, canal_lock:info()) end),
            tells(After),
            After
        end,
        Again,
        maps:keys(Again)
    ).

released_one_by_one(Pid, Holdings) ->
    #{Pid := Held} = Holdings,
    case maps:keys(Held) of
        [] ->
            Holdings;
        [Key | _] ->
            ok = test_worker:order(Pid, fun() -> canal_lock:release(Key) end),
            Less =
                case Held of
                    #{Key := 1} -> maps:remove(Key, Held);
                    #{Key := Permits} -> Held#{Key := Permits - 1}
                end,
            After = Holdings#{Pid := Less},
            tells(After),
            released_one_by_one(Pid, After)
    end.

nothing_done() ->
    Holder = holder(#{db => 3, {app, 1} => 1}),
    full = canal_lock:acquire(db, 3, 1),
    full = canal_lock:acquire(new, 3, 0),
    {error, not_held} = canal_lock:release(db),
    {error, not_held} = test_worker:order(Holder, fun() -> canal_lock:release(new) end),
    ?assertError(badarg, canal_lock:acquire(new, -1, 1)),
    tells(#{self() => #{}, Holder => #{db => 3, {app, 1} => 1}}).

kinds() ->
    [
        begin
            {acquired, 1} = canal_lock:acquire(Term, 1, 1),
            [{FromKeys, 1}] = canal_lock:keys(),
            [{FromHeld, 1}] = canal_lock:held(),
            {_, [{FromElsewhere, 1}]} = held_seen_from_elsewhere(),
            Self = self(),
            ?assertEqual({Name, [{Self, 1}]}, {Name, canal_lock:holders(Term)}),
            [
                ?assertEqual({Name, true}, {Name, Back =:= Term})
             || Back <- [FromKeys, FromHeld, FromElsewhere]
            ],
            %% Not only for `=:=', but for a release as well.
            ?assertEqual({Name, ok}, {Name, canal_lock:release(FromKeys)})
        end
     || {Name, Term} <- test_key_terms:all()
    ].

held_seen_from_elsewhere() ->
    Self = self(),
    test_worker:start(fun() -> canal_lock:held(Self) end).

kinds_at_once() ->
    Terms = [Term || {_, Term} <- test_key_terms:all()],
    Times = fun(Term, Held) -> maps:update_with(Term, fun(Permits) -> Permits + 1 end, 1, Held) end,
    Held = lists:foldl(Times, #{}, Terms),
    tells(#{holder(Held) => Held, holder(Held) => Held, holder(#{db => 1}) => #{db => 1}}).

%% Compared by the VM, which does not recurse either. Nothing is shown: some of it could not be.
deep() ->
    Shapes = [
        {Shape, fun() -> test_key_terms:deep(Shape, ?LEVELS) end}
     || Shape <- [tuple, list, tail, map, map_key]
    ],
    [
        begin
            {Worker, Answers} = test_worker:start(fun() -> comes_back(Make()) end),
            ?assertEqual({Name, #{keys => true, held => true, holders => true}}, {Name, Answers}),
            ok = test_worker:kill(Worker)
        end
     || {Name, Make} <- Shapes ++ mixed() ++ wide()
    ],
    test_await:permits(0),
    ok = canal_lock_manager:sweep().

comes_back(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    Answers = #{
        keys => [{Key, 1}] =:= canal_lock:keys(),
        held => [{Key, 1}] =:= canal_lock:held(),
        holders => [{self(), 1}] =:= canal_lock:holders(Key)
    },
    ok = canal_lock:release(Key),
    Answers.

%% Each level has parts before and after the next one.
mixed() ->
    Around = fun(Innermost) -> lists:foldl(fun wrap/2, Innermost, lists:seq(1, ?LEVELS div 4)) end,
    [
        {mixed, fun() -> Around(innermost) end},
        {mixed_around_what_only_the_vm_looks_into, fun() -> Around(#{1 => make_ref()}) end}
    ].

wrap(N, Term) ->
    case N rem 4 of
        0 -> {N, Term, <<"between">>, []};
        1 -> [{}, <<>>, Term, N | {1.5}];
        2 -> [N, [] | Term];
        3 -> [[[]] | {Term, N}]
    end.

wide() ->
    Seq = lists:seq(1, ?PARTS),
    [
        {wide_list, fun() -> Seq end},
        {wide_improper_list, fun() -> Seq ++ {tail, [of_it]} end},
        {wide_tuple, fun() -> list_to_tuple(Seq) end},
        {wide_list_of_lists, fun() -> [[N, [], [[] | N]] || N <- Seq] end},
        {wide_map, fun() -> maps:from_list([{N, []} || N <- Seq]) end},
        {long_binary, fun() -> binary:copy(<<"0123456789a">>, ?PARTS) end}
    ].

outlives() ->
    Term = {"deep", [#{<<"binary">> => 1 bsl 90}, lists:seq(1, 100), binary:copy(<<"x">>, 200)]},
    Encoded = term_to_binary(Term),
    {Holder, {acquired, 1}} = test_worker:start(fun() -> canal_lock:acquire(binary_to_term(Encoded), 1, 1) end),
    test_worker:order(Holder, fun() -> erlang:garbage_collect() end),
    [{Back, 1}] = canal_lock:keys(),
    [{BackToo, 1}] = canal_lock:held(Holder),
    ok = test_worker:kill(Holder),
    test_await:count(Term, 0),
    ok = canal_lock_manager:sweep(),
    ?assertMatch(#{keys := 0}, canal_lock:info()),
    erlang:garbage_collect(),
    ?assertEqual({Term, Term}, {Back, BackToo}).

not_there() ->
    {Dead, _} = test_worker:start(fun() -> take(#{db => 1, {app, 1} => 1, "string" => 1}) end),
    Holder = holder(#{db => 1}),
    ok = test_worker:kill(Dead),
    test_await:count(db, 1),
    test_await:value([], fun() -> canal_lock:held(Dead) end),
    tells(#{Holder => #{db => 1}, Dead => #{}}),
    %% The number of a process says where its slot is; these are as many as have the holder's, or nearly.
    [?assertEqual({Other, []}, {Other, canal_lock:held(Other)}) || Other <- of_other_generations(Holder)].

of_other_generations(Pid) ->
    {match, [Number, Serial]} = re:run(pid_to_list(Pid), "<0\\.(\\d+)\\.(\\d+)>", [{capture, all_but_first, list}]),
    [
        list_to_pid(lists:concat(["<0.", Number, ".", list_to_integer(Serial) + Further, ">"]))
     || Further <- lists:seq(1, 64)
    ].

%% Of processes that do not exist, represented by workers: what a proxy holds is shown as held by the process that it
%% represents.
other_nodes() ->
    [Known, Second, Unknown | _] = pids_of_other_nodes(),
    Here = holder(#{db => 1}),
    Proxy = holder(#{db => 1, "string" => 1}),
    tells(#{Here => #{db => 1}, Proxy => #{db => 1, "string" => 1}}),
    ok = test_worker:order(Proxy, fun() -> canal_lock_nif:represent(Known) end),
    Represented = #{Here => #{db => 1}, Known => #{db => 1, "string" => 1}, Unknown => #{}, self() => #{}},
    tells(Represented),
    [?assertEqual({Pid, []}, {Pid, canal_lock:held(Pid)}) || Pid <- pids_of_other_nodes(), Pid =/= Known],
    %% A second proxy is refused while the first one lives, and holds nothing.
    {Other, Proxy} = test_worker:start(fun() -> canal_lock_nif:represent(Known) end),
    tells(Represented),
    ok = test_worker:order(Other, fun() -> canal_lock_nif:represent(Second) end),
    ?assertEqual([Proxy, Other, none], [canal_lock_nif:proxy_of(Pid) || Pid <- [Known, Second, Unknown]]),
    ok = test_worker:kill(Proxy),
    test_await:value([], fun() -> canal_lock:held(Known) end),
    tells(#{Here => #{db => 1}, Known => #{}}),
    ?assertEqual([none, Other], [canal_lock_nif:proxy_of(Pid) || Pid <- [Known, Second]]).

pids_of_other_nodes() ->
    #{from_other_nodes := Terms} = maps:from_list(test_key_terms:by_kind()),
    [Pid || Pid <- Terms, is_pid(Pid)].

%% Every view tells just this: what each of these processes holds, and that nobody else holds anything.
tells(Holdings) ->
    Sums = sums(Holdings),
    [?assert({Pid, same(Held, canal_lock:held(Pid))} =:= {Pid, true}) || {Pid, Held} <- maps:to_list(Holdings)],
    ?assert(same(maps:get(self(), Holdings, #{}), canal_lock:held())),
    ?assert(same(Sums, canal_lock:keys())),
    [
        begin
            ?assert(same(holders(Key, Holdings), canal_lock:holders(Key))),
            ?assert(canal_lock:count(Key) =:= Sum)
        end
     || {Key, Sum} <- some(maps:to_list(Sums))
    ],
    ?assertEqual([], canal_lock:audit()),
    #{permits := Permits, holders := Holders} = canal_lock:info(),
    ?assertEqual({permits(Holdings), holders(Holdings)}, {Permits, Holders}).

%% Keys of maps are told apart by `=:=', too.
same(Map, Told) ->
    length(Told) =:= map_size(Map) andalso maps:from_list(Told) =:= Map.

sums(Holdings) ->
    Add = fun(_, One, Other) -> One + Other end,
    lists:foldl(fun(Held, Sums) -> maps:merge_with(Add, Held, Sums) end, #{}, maps:values(Holdings)).

holders(Key, Holdings) ->
    maps:filtermap(
        fun
            (_, #{Key := Permits}) -> {true, Permits};
            (_, _) -> false
        end,
        Holdings
    ).

permits(Holdings) ->
    lists:sum(maps:values(sums(Holdings))).

holders(Holdings) ->
    length([Held || Held <- maps:values(Holdings), Held =/= #{}]).

some(List) ->
    Every = 1 + length(List) div ?ASKED,
    [Element || {N, Element} <- lists:zip(lists:seq(1, length(List)), List), N rem Every =:= 0].
