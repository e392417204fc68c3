%% The verdict of the demo: it accepts a correct record, and reports each thing that is wrong in one, and no other.
-module(cluster_demo_verdict_tests).

-include_lib("eunit/include/eunit.hrl").

-define(A, {n1, 1, actor}).
-define(B, {n2, 1, actor}).
-define(C, {n3, 1, extra}).
-define(D, {n3, 1, actor}).

nothing_wrong_test() ->
    Verdict = cluster_demo_verdict:judge(record(events(), log(), #{x => 2}), at_rest()),
    ?assertMatch(
        #{
            broken := [],
            counts := #{granted := 5, readers := 2, unlocked := 3, lost := 1, killed := 1, at_risk := 1, late := 1},
            names := [{x, #{fences := [1, 2, 3], writers := 1, readers := 2, value := 2}}]
        },
        Verdict
    ),
    ?assertEqual("All promises were kept.", lists:flatten(lists:last(cluster_demo_verdict:lines(Verdict)))).

%% Without some of the events below, and with others.
wrong_events_test_() ->
    [
        {Title, fun() -> ?assertMatch([_ | _], found(Sentence, broken((events() -- Less) ++ More, log()))) end}
     || {Title, Sentence, Less, More} <- [
            {"two writers at once", "held by n1 .* and n2 .* at once", [], [held(?A, 1, write, 1, 115)]},
            {"a writer with readers", "held by n2 .* and n3 .* at once", [], [held(?B, 1, write, 2, 205)]},
            {"a writer's fence that is lower", "n3 .*fence 0.* after n3 .*fence 3", [], alone(?C, 7, write, 0, 400)},
            {"a fence that two writers have", "have the same fence", [], alone(?C, 7, write, 2, 400)},
            {"a reader's fence that is lower", "n3 .*read, fence 2.* after n3 .*fence 3", [],
                alone(?C, 7, read, 2, 400)},
            {"a lock that is held after its unlock", "lost_is_final", [], [held(?B, 1, write, 2, 150)]},
            {"a lock without an end", "ended 0 times", [unlocked(?B, 1, write, 2, 130)], []},
            {"a lock that ends twice", "ended 2 times", [], [unlocked(?A, 1, write, 1, 111)]},
            {"a lock without an end after the restart of the killed node", "ended 0 times", [],
                [{400, {n3, 2, actor}, {granted, {1, write, [x], 9}}}]},
            {"a holder that the register refuses", "refused, and it held", [late(false)], [late(true)]},
            {"a client with an answer to a write that was not made", "it was not written", [],
                [{500, ?C, {{write, x, 2, 3}, {1, read, [x], 2}, {ok, 3}, false}}]},
            {"a client without an answer to its write", "it got no answer", [wrote(?B, 1, 2, 2, 125)], []},
            {"no lock at risk", "no lock was at risk", [at_risk()], []},
            {"no request without a quorum", "no request was refused without a quorum", [refused()], []}
        ]
    ].

%% A client of a killed node may not know of its write.
unknown_write_of_the_killed_test() ->
    Write = {?D, {write, x, 3, 3}, {ok, 3}},
    Read = {?D, {read, x, 3}, {ok, 2}},
    ?assertEqual([], broken(events(), log() ++ [Read, Write], #{x => 3}, at_rest())).

wrong_register_test_() ->
    [
        {Title, fun() -> ?assertMatch([_ | _], found(Sentence, broken(events(), Log, Values, at_rest()))) end}
     || {Title, Sentence, Log, Values} <- [
            {"it takes a late write", "was not refused, after fence 2",
                [case Entry of {?A, Write, {refused, _}} -> {?A, Write, {ok, 2}}; _ -> Entry end || Entry <- log()],
                #{x => 2}},
            {"it refuses a request that is not late", "was refused, after fence 2",
                log() ++ [{?C, {read, x, 2}, {refused, 3}}], #{x => 2}},
            {"a write that is undone", "did not add one to the number, which was 2",
                log() ++ [{?C, {write, x, 3, 2}, {ok, 2}}], #{x => 2}},
            {"a number that was not written", "are not those that were written", log(), #{x => 3}}
        ]
    ].

left_over_test_() ->
    [
        {Sentence, fun() -> ?assertMatch([_ | _], found(Sentence, broken(events(), log(), #{x => 2}, AtRest))) end}
     || {Sentence, AtRest} <- [
            {"n1 at the end: #{voter_empty => false}", at_rest((empty())#{voter_empty := false})},
            {"n1 at the end: #{answering => 4}", at_rest((empty())#{answering := 4})},
            {"n1 at the end: #{pending_unlocks => 1}", at_rest((empty())#{pending_unlocks := 1})},
            {"a lock is left", (at_rest())#{locks := [a_lock]}},
            {"n1 does not report", (at_rest())#{silent := [n1]}},
            {"awaited without success: n1", (at_rest())#{missing := ["n1"]}}
        ]
    ].

%% The text contains what was found.
broken_lines_test() ->
    Verdict = cluster_demo_verdict:judge(record([], [], #{}), at_rest()),
    Lines = [lists:flatten(Line) || Line <- cluster_demo_verdict:lines(Verdict)],
    ?assertNot(lists:member("All promises were kept.", Lines)),
    ?assert(lists:member("BROKEN  no lock was granted", Lines)).

%%% A record: a writer that loses its lock and writes late, the next writer, two readers, and a writer that is killed

events() ->
    [
        {100, ?A, {granted, {1, write, [x], 1}}},
        held(?A, 1, write, 1, 101),
        {102, ?A, {{read, x, 1}, {1, write, [x], 1}, {ok, 0}, true}},
        {103, ?A, {{write, x, 1, 1}, {1, write, [x], 1}, {ok, 1}, true}},
        at_risk(),
        refused(),
        {110, ?B, {granted, {1, write, [x], 2}}},
        held(?B, 1, write, 2, 120),
        {121, ?B, {{read, x, 2}, {1, write, [x], 2}, {ok, 1}, true}},
        wrote(?B, 1, 2, 2, 125),
        late(false),
        {127, ?A, {lost, {1, write, [x], 1}}},
        unlocked(?B, 1, write, 2, 130),
        {200, ?C, {granted, {1, read, [x], 2}}},
        {201, ?D, {granted, {1, read, [x], 2}}},
        held(?C, 1, read, 2, 210),
        held(?D, 1, read, 2, 210),
        unlocked(?C, 1, read, 2, 220),
        unlocked(?D, 1, read, 2, 221),
        {300, ?D, {granted, {2, write, [x], 3}}},
        held(?D, 2, write, 3, 310),
        {320, demo, {killed, n3, 1}}
    ].

log() ->
    [
        {?A, {read, x, 1}, {ok, 0}},
        {?A, {write, x, 1, 1}, {ok, 1}},
        {?B, {read, x, 2}, {ok, 1}},
        {?B, {write, x, 2, 2}, {ok, 2}},
        {?A, {write, x, 1, 2}, {refused, 2}},
        {?C, {look, x, 2}, {ok, 2}}
    ].

held(Client, Number, Mode, Fence, At) -> {At + 1, Client, {held, {Number, Mode, [x], Fence}, At, At + 1}}.
unlocked(Client, Number, Mode, Fence, At) -> {At, Client, {unlocked, {Number, Mode, [x], Fence}, ok}}.
wrote(Client, Number, Fence, Value, At) ->
    {At, Client, {{write, x, Fence, Value}, {Number, write, [x], Fence}, {ok, Value}, true}}.
late(HeldAfter) -> {126, ?A, {{write, x, 1, 2}, {1, write, [x], 1}, {refused, 2}, HeldAfter}}.
at_risk() -> {104, ?A, {at_risk, {1, write, [x], 1}}}.
refused() -> {105, ?C, {refused, [x], no_quorum}}.

alone(Client, Number, Mode, Fence, At) ->
    [
        {At, Client, {granted, {Number, Mode, [x], Fence}}},
        held(Client, Number, Mode, Fence, At + 1),
        unlocked(Client, Number, Mode, Fence, At + 5)
    ].

at_rest() ->
    at_rest(empty()).

at_rest(State) ->
    #{nodes => [{n1, State}], locks => [], silent => [], missing => []}.

empty() ->
    cluster_demo_verdict:empty(n1).

record(Events, Log, Values) ->
    #{events => lists:keysort(1, Events), log => Log, values => Values}.

broken(Events, Log) ->
    broken(Events, Log, #{x => 2}, at_rest()).

broken(Events, Log, Values, AtRest) ->
    #{broken := Broken} = cluster_demo_verdict:judge(record(Events, Log, Values), AtRest),
    Broken.

%% The sentences that match. The others must be consequences.
found(Sentence, Broken) ->
    ?assert(length(Broken) =< 3),
    [Found || Found <- Broken, re:run(Found, Sentence, [unicode]) =/= nomatch].
