%% holders/1, held/0,1, keys/0 and audit/0 are exact when no other call runs, and return the keys as they were acquired.
-module(canal_lock_view_tests).

-include_lib("eunit/include/eunit.hrl").

-import(test_worker, [holder/1]).

-define(LEVELS, test_setup:in_soak(1_000_000, 100_000)).
-define(PARTS, 100_000).

%% Of more keys than this, only about this many are read one by one.
-define(ASKED, 1000).

view_test_() ->
    test_setup:tests([
        {"processes hold from 1 to 10,000 keys", fun few_and_many_keys/0},
        {"P9: the views return a key of any kind unchanged", fun kinds/0},
        {"P9: the views return keys of every kind that several processes hold at once", fun kinds_at_once/0},
        {"P9: the views return keys that are very deep or wide", fun deep/0},
        {"the views return a key whose original term is garbage", fun outlives/0},
        {"held/1 is empty for dead processes and for pids that share a slot with a holder", fun not_there/0},
        {"processes of other nodes: holders and unknown ones", fun other_nodes/0},
        {"audit/0 lists keys whose count and records differ", fun differing/0}
    ]).

%% The slot of a process stores two keys; a separate table stores the others. The keys in the slot of one process are in
%% the table of another.
few_and_many_keys() ->
    Counts = [1, 2, 3, 4, 5, 100, 10_000],
    Wanted = [maps:from_list([{{key, N}, 1 + N rem 3} || N <- lists:seq(1, Count)]) || Count <- Counts],
    Reversed = [maps:from_list([{{key, 10_001 - N}, 2} || N <- lists:seq(1, Count)]) || Count <- Counts],
    views_show(maps:from_list([{holder(Held), Held} || Held <- Wanted ++ Reversed])).

kinds() ->
    lists:foreach(fun({Name, Term}) ->
        {acquired, 1} = canal_lock:acquire(Term, 1, 1),
        [{FromKeys, 1}] = canal_lock:keys(),
        [{FromHeld, 1}] = canal_lock:held(),
        {_, [{FromElsewhere, 1}]} = held_seen_from_elsewhere(),
        Self = self(),
        ?assertEqual({Name, [{Self, 1}]}, {Name, canal_lock:holders(Term)}),
        [?assertEqual({Name, true}, {Name, Back =:= Term}) || Back <- [FromKeys, FromHeld, FromElsewhere]],
        %% A release accepts the returned key.
        ?assertEqual({Name, ok}, {Name, canal_lock:release(FromKeys)})
    end, test_key_terms:all()).

held_seen_from_elsewhere() ->
    Self = self(),
    test_worker:start(fun() -> canal_lock:held(Self) end).

kinds_at_once() ->
    Held = test_setup:sums([#{Term => 1} || {_, Term} <- test_key_terms:for_maps()]),
    views_show(#{holder(Held) => Held, holder(Held) => Held, holder(#{db => 1}) => #{db => 1}}).

%% `=:=' does not recurse on the C stack. The assertions print no keys, because some are too large.
deep() ->
    Shapes = [{Shape, fun() -> test_key_terms:deep(Shape, ?LEVELS) end} || Shape <- [tuple, list, tail, map, map_key]],
    lists:foreach(fun({Name, Make}) ->
        {Worker, Answers} = test_worker:start(fun() -> is_returned(Make()) end),
        ?assertEqual({Name, #{keys => true, held => true, holders => true}}, {Name, Answers}),
        ok = test_worker:kill(Worker)
    end, Shapes ++ mixed() ++ wide()),
    test_await:permits(0),
    ok = canal_lock_manager:sweep().

is_returned(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    Answers = #{
        keys => [{Key, 1}] =:= canal_lock:keys(),
        held => [{Key, 1}] =:= canal_lock:held(),
        holders => [{self(), 1}] =:= canal_lock:holders(Key)
    },
    ok = canal_lock:release(Key),
    Answers.

%% Each level has parts before and after the nested level.
mixed() ->
    Around = fun(Innermost) -> lists:foldl(fun wrap/2, Innermost, lists:seq(1, ?LEVELS div 4)) end,
    [
        {mixed, fun() -> Around(innermost) end},
        {mixed_around_a_reference, fun() -> Around(#{1 => make_ref()}) end}
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
    {Dead, _} = test_worker:start(fun() -> test_worker:take(#{db => 1, {app, 1} => 1, "string" => 1}) end),
    Holder = holder(#{db => 1}),
    ok = test_worker:kill(Dead),
    test_await:count(db, 1),
    test_await:value([], fun() -> canal_lock:held(Dead) end),
    views_show(#{Holder => #{db => 1}, Dead => #{}}),
    %% The process number selects the slot. These pids have the number of the holder and other serials.
    [?assertEqual({Other, []}, {Other, canal_lock:held(Other)}) || Other <- pids_with_the_number_of(Holder)].

pids_with_the_number_of(Pid) ->
    {match, [Number, Serial]} = re:run(pid_to_list(Pid), "<0\\.(\\d+)\\.(\\d+)>", [{capture, all_but_first, list}]),
    [
        list_to_pid(lists:concat(["<0.", Number, ".", list_to_integer(Serial) + Further, ">"]))
     || Further <- lists:seq(1, 64)
    ].

%% Workers represent processes of nodes that do not exist: the views show the permits of a proxy under the pid of the
%% process that it represents.
other_nodes() ->
    [Known, Second, Unknown] = Pids = [test_setup:remote_pid(N) || N <- [1, 2, 3]],
    Here = holder(#{db => 1}),
    Proxy = holder(#{db => 1, "string" => 1}),
    views_show(#{Here => #{db => 1}, Proxy => #{db => 1, "string" => 1}}),
    ok = test_worker:order(Proxy, fun() -> canal_lock_nif:represent(Known) end),
    Represented = #{Here => #{db => 1}, Known => #{db => 1, "string" => 1}, Unknown => #{}, self() => #{}},
    views_show(Represented),
    [?assertEqual({Pid, []}, {Pid, canal_lock:held(Pid)}) || Pid <- Pids ++ pids_of_other_nodes(), Pid =/= Known],
    %% A second proxy is refused while the first one lives.
    {Other, Proxy} = test_worker:start(fun() -> canal_lock_nif:represent(Known) end),
    views_show(Represented),
    ok = test_worker:order(Other, fun() -> canal_lock_nif:represent(Second) end),
    ?assertEqual([Proxy, Other, none], [canal_lock_nif:proxy_of(Pid) || Pid <- [Known, Second, Unknown]]),
    ok = test_worker:kill(Proxy),
    test_await:value([], fun() -> canal_lock:held(Known) end),
    views_show(#{Here => #{db => 1}, Known => #{}}),
    ?assertEqual([none, Other], [canal_lock_nif:proxy_of(Pid) || Pid <- [Known, Second]]).

%% The records are read before the counts, so the answers differ while permits are acquired and released.
differing() ->
    Busy = spawn_link(fun() ->
        {acquired, 1} = canal_lock:acquire(kept, 2, 1),
        acquire_and_release()
    end),
    lists:foreach(fun(Row) ->
        test_await:value(true, fun() -> lists:member(Row, canal_lock:audit()) end)
    end, [{db, 0, 1}, {db, 1, 0}, {kept, 1, 2}, {kept, 2, 1}]),
    true = unlink(Busy),
    ok = test_worker:kill(Busy).

acquire_and_release() ->
    [{acquired, _} = canal_lock:acquire(Key, 2, 1) || Key <- [db, kept]],
    [ok = canal_lock:release(Key) || Key <- [db, kept]],
    acquire_and_release().

pids_of_other_nodes() ->
    #{from_other_nodes := Terms} = maps:from_list(test_key_terms:by_kind()),
    [Pid || Pid <- Terms, is_pid(Pid)].

%% Every view shows exactly the permits of these processes, and no other permits.
views_show(Holdings) ->
    Sums = test_setup:sums(maps:values(Holdings)),
    [?assert({Pid, same(Held, canal_lock:held(Pid))} =:= {Pid, true}) || {Pid, Held} <- maps:to_list(Holdings)],
    ?assert(same(maps:get(self(), Holdings, #{}), canal_lock:held())),
    ?assert(same(Sums, canal_lock:keys())),
    lists:foreach(fun({Key, Sum}) ->
        ?assert(same(holders(Key, Holdings), canal_lock:holders(Key))),
        ?assert(canal_lock:count(Key) =:= Sum)
    end, sample(maps:to_list(Sums))),
    ?assertEqual([], canal_lock:audit()),
    #{permits := Permits, holders := Holders} = canal_lock:info(),
    ?assertEqual({permits(Holdings), holders(Holdings)}, {Permits, Holders}).

%% Maps compare their keys with `=:=' too.
same(Map, Rows) ->
    length(Rows) =:= map_size(Map) andalso maps:from_list(Rows) =:= Map.

holders(Key, Holdings) ->
    maps:from_list([{Pid, Permits} || {Pid, #{Key := Permits}} <- maps:to_list(Holdings)]).

permits(Holdings) ->
    lists:sum(maps:values(test_setup:sums(maps:values(Holdings)))).

holders(Holdings) ->
    length([Held || Held <- maps:values(Holdings), Held =/= #{}]).

sample(List) ->
    Every = 1 + length(List) div ?ASKED,
    [Element || {N, Element} <- lists:enumerate(List), N rem Every =:= 0].
