%% Whether the promises of the locks were kept: judges the events of the clients, the requests to the register, and what
%% is left on the nodes at the end. test_quorum_history checks the order of the locks and their fences.
-module(cluster_demo_verdict).

-export([judge/2, empty/1, lines/1]).

-export_type([verdict/0, at_rest/0]).

%% At the end: the state of each node, the locks that members report, members that do not answer, and what was awaited
%% without success.
-type at_rest() :: #{
    nodes := [{Node :: atom(), #{atom() => term()}}], locks := [term()], silent := [node()], missing := [iodata()]
}.

%% `broken': sentences for people. `writers' and `readers': how many held the name at the same time, at most.
-type verdict() :: #{
    counts := #{atom() => non_neg_integer()},
    names := [
        {canal_lock_quorum:name(), #{
            fences := [non_neg_integer()],
            writers := non_neg_integer(),
            readers := non_neg_integer(),
            value := integer()
        }}
    ],
    broken := [string()]
}.

%% The state of a node at rest. Clients do not vote: c1, and n5, which c2 has replaced.
-spec empty(Node :: atom()) -> #{atom() => term()}.
empty(Node) ->
    #{
        answering => 5, voting => not lists:member(Node, [n5, c1]), quorum => true, voter_empty => true,
        held => 0, waiting => 0, pending_unlocks => 0
    }.

-spec judge(cluster_demo_recorder:recording(), at_rest()) -> verdict().
judge(#{events := Events, log := Log, values := Values}, AtRest) ->
    Killed = [{Node, Start} || {_, demo, {killed, Node, Start}} <- Events],
    History = #{clients => maps:to_list(histories(Events)), known => []},
    Ends = ends(Events),
    Locks = [
        {Lock, maps:get({Client, Number}, Ends, [])}
     || Lock = #{client := Client, request := Number} <- test_quorum_history:locks(History)
    ],
    Names = lists:usort([Name || {#{names := Of}, _} <- Locks, Name <- Of]),
    Counts = counts(Events, Locks, Killed),
    #{
        counts => Counts,
        names => [{Name, of_name(Name, Locks, Values)} || Name <- Names],
        broken => [
            lists:flatten(Sentence)
         || Sentence <-
                [violation(Violation) || Violation <- test_quorum_history:violations(History)] ++
                    ended(Locks, Killed) ++ register_correct(Log, Values) ++ refused_holders(Events) ++
                    written(Events, Log, Killed) ++ left_over(AtRest) ++ not_tested(Counts)
        ]
    }.

%% The events of each client as facts. The time of a request is not recorded, so each is as early as possible.
histories(Events) ->
    Facts = [{{Node, {Start, Role}}, Fact} || {At, {Node, Start, Role}, Type} <- Events, Fact <- facts(Type, At)],
    maps:groups_from_list(fun({Client, _}) -> Client end, fun({_, Fact}) -> Fact end, Facts).

facts({granted, {Number, Mode, Names, Fence}}, At) -> [{asked, 0, Number, Mode, Names}, {granted, At, Number, Fence}];
facts({held, {Number, _, _, _}, Began, _Ended}, _) -> [{held, Began, Began, Number}];
facts({at_risk, {Number, _, _, _}}, At) -> [{at_risk, At, Number}];
facts({lost, {Number, _, _, _}}, At) -> [{lost, At, Number}];
facts({unlocks, {Number, _, _, _}}, At) -> [{unlocking, At, Number, unlock}];
facts({unlocked, {Number, _, _, _}, Answer}, At) -> [{unlocked, At, Number, Answer}];
facts(_, _) -> [].

%% How each lock ended. An unlock that is refused is no end: the lock was lost.
ends(Events) ->
    Found = [
        {{{Node, {Start, Role}}, Number}, End}
     || {_, {Node, Start, Role}, Type} <- Events, {Number, End} <- ending(Type)
    ],
    maps:groups_from_list(fun({Lock, _}) -> Lock end, fun({_, End}) -> End end, Found).

ending({lost, {Number, _, _, _}}) -> [{Number, lost}];
ending({unlocked, {Number, _, _, _}, Answer}) -> [{Number, unlocked} || Answer =/= {error, not_held}];
ending(_) -> [].

of_name(Name, Locks, Values) ->
    Of = [Lock || {Lock = #{names := Names}, _} <- Locks, lists:member(Name, Names)],
    {Writers, Readers} = lists:partition(fun is_writer/1, Of),
    #{
        fences => lists:sort([Fence || #{fence := Fence} <- Writers]),
        writers => most(Writers),
        readers => most(Readers),
        value => maps:get(Name, Values, 0)
    }.

is_writer(#{mode := Mode}) -> Mode =:= write.

%% Of these locks, how many were certainly held when one of them was granted.
most(Locks) ->
    Spans = [{From, To} || #{granted := From, certainly_held_until := To} <- Locks, To =/= never],
    lists:max([0 | [length([held || {Since, Until} <- Spans, Since =< From, Until > From]) || {From, _} <- Spans]]).

%%% Promises. Each function returns a sentence for each violation.

violation({Promise, {Name, One, Other}}) when Promise =:= q1_alone; Promise =:= q11_all_or_nothing ->
    io_lib:format("~0tp: held by ~ts and ~ts at once", [Name, holder(One), holder(Other)]);
violation({q5_fences_grow, {Name, the_same, One, Other}}) ->
    io_lib:format("~0tp: ~ts and ~ts have the same fence", [Name, holder(One), holder(Other)]);
violation({q5_fences_grow, {Name, not_higher, One, Other}}) ->
    io_lib:format("~0tp: ~ts was granted after ~ts", [Name, holder(Other), holder(One)]);
violation({Promise, Details}) ->
    io_lib:format("~ts: ~0tp", [Promise, Details]).

holder(#{client := {Node, {Start, Role}}, mode := Mode, fence := Fence}) ->
    io_lib:format("~ts (start ~b, ~ts, ~ts, fence ~b)", [Node, Start, Role, Mode, Fence]).

%% Each lock is unlocked or lost, once, unless its node was killed.
ended(Locks, Killed) ->
    [
        io_lib:format("~0tp: ~ts ended ~b times", [Names, holder(Lock), length(Ends)])
     || {Lock = #{names := Names}, Ends} <- Locks,
        length(Ends) > 1 orelse (Ends =:= [] andalso not is_killed(Lock, Killed))
    ].

is_killed(#{client := {Node, {Start, _}}}, Killed) ->
    lists:member({Node, Start}, Killed).

%% The register took no write with a lower fence than before, refused nothing else, and each write added one.
register_correct(Log, Values) ->
    {Entries, Broken} = lists:foldl(fun request/2, {#{}, []}, Log),
    Numbers = maps:map(fun(_, {Value, _}) -> Value end, Entries),
    lists:reverse(Broken) ++ ["the register's numbers are not those that were written" || Numbers =/= Values].

request({Client, Request, Answer}, {Entries, Broken}) ->
    Name = element(2, Request),
    Fence = element(3, Request),
    {Value, Highest} = maps:get(Name, Entries, {0, 0}),
    IsTaken = element(1, Answer) =:= ok,
    Wrong =
        [{"was not refused, after fence", Highest} || IsTaken, Fence < Highest] ++
            [{"was refused, after fence", Highest} || not IsTaken, Fence >= Highest] ++
            [
                {"did not add one to the number, which was", Value}
             || {write, _, _, New} <- [Request], IsTaken, New =/= Value + 1
            ],
    Entry =
        case Request of
            {write, _, _, Written} when IsTaken -> {Written, max(Fence, Highest)};
            {read, _, _} when IsTaken -> {Value, max(Fence, Highest)};
            _ -> {Value, Highest}
        end,
    Sentences = [io_lib:format("~0tp of ~0tp ~ts ~b", [Request, Client, Text, N]) || {Text, N} <- Wrong],
    {Entries#{Name => Entry}, Sentences ++ Broken}.

%% A client that holds its lock after the register has refused it held it all the time.
refused_holders(Events) ->
    [
        io_lib:format("~0tp of ~0tp was refused, and it held the lock", [Request, Client])
     || {_, Client, {Request, _, {refused, _}, true}} <- Events
    ].

%% The writes that clients know of are those of the register. A client of a killed node may not know of its last one.
written(Events, Log, Killed) ->
    Known = lists:sort([{Client, Request} || {_, Client, {{write, _, _, _} = Request, _, {ok, _}, _}} <- Events]),
    Done = lists:sort([{Client, Request} || {Client, {write, _, _, _} = Request, {ok, _}} <- Log]),
    Unknown = [Write || {{Node, Start, _}, _} = Write <- Done -- Known, not lists:member({Node, Start}, Killed)],
    NotDone = Known -- Done,
    [io_lib:format("~0tp got an answer to ~0tp, and it was not written", [Who, Write]) || {Who, Write} <- NotDone] ++
        [io_lib:format("~0tp of ~0tp was written, and it got no answer", [Write, Who]) || {Who, Write} <- Unknown].

left_over(#{nodes := Nodes, locks := Locks, silent := Silent, missing := Missing}) ->
    [
        io_lib:format("~ts at the end: ~0tp", [Node, maps:from_list(maps:to_list(State) -- maps:to_list(empty(Node)))])
     || {Node, State} <- Nodes, State =/= empty(Node)
    ] ++
        [io_lib:format("a lock is left: ~0tp", [Lock]) || Lock <- Locks] ++
        [io_lib:format("~ts does not report its locks", [Node]) || Node <- Silent] ++
        [["awaited without success: ", What] || What <- Missing].

%% A promise that the demo did not test was not kept either.
not_tested(Counts) ->
    Wanted = [
        {granted, "no lock was granted"},
        {readers, "no reader had a lock"},
        {at_risk, "no lock was at risk"},
        {lost, "no lock was lost"},
        {killed, "no holder was killed"},
        {no_quorum, "no request was refused without a quorum"},
        {late, "the register refused no late write"}
    ],
    [Sentence || {Key, Sentence} <- Wanted, maps:get(Key, Counts) =:= 0].

counts(Events, Locks, Killed) ->
    #{
        granted => length(Locks),
        readers => length([Lock || {Lock, _} <- Locks, not is_writer(Lock)]),
        unlocked => length([Lock || {Lock, [unlocked]} <- Locks]),
        lost => length([Lock || {Lock, [lost]} <- Locks]),
        killed => length([Lock || {Lock, []} <- Locks, is_killed(Lock, Killed)]),
        at_risk => length([Lock || {_, _, {at_risk, Lock}} <- Events]),
        no_quorum => length([Names || {_, _, {refused, Names, no_quorum}} <- Events]),
        timeout => length([Names || {_, _, {refused, Names, timeout}} <- Events]),
        checks => length([Lock || {_, _, {held, Lock, _, _}} <- Events]),
        writes => length([Lock || {_, _, {{write, _, _, _}, Lock, {ok, _}, _}} <- Events]),
        late => length([Lock || {_, _, {{write, _, _, _}, Lock, {refused, _}, _}} <- Events])
    }.

%% The verdict as text.
-spec lines(verdict()) -> [iolist()].
lines(#{counts := Counts, names := Names, broken := Broken}) ->
    Line = fun(Format, Keys) -> io_lib:format(Format, [maps:get(Key, Counts) || Key <- Keys]) end,
    [
        Line("~b locks granted, ~b of them to readers: ~b unlocked, ~b lost, ~b ended with a killed node", [
            granted, readers, unlocked, lost, killed
        ]),
        Line("locks at risk: ~b; requests refused: ~b without a quorum, ~b after their timeout", [
            at_risk, no_quorum, timeout
        ]),
        Line("~b checks found a lock held; the register took ~b writes, and refused ~b late ones", [
            checks, writes, late
        ]),
        "",
        io_lib:format("~-10ts ~8ts  ~-41ts ~22ts ~9ts", [
            "name", "writers", "their fences", "at most at once", "number"
        ])
    ] ++ [name_line(Name, Of) || {Name, Of} <- Names] ++
        case Broken of
            [] -> ["", "All promises were kept."];
            _ -> ["" | [["BROKEN  ", Promise] || Promise <- Broken]]
        end.

name_line(Name, #{fences := Fences, writers := Writers, readers := Readers, value := Value}) ->
    Range = [io_lib:format("~b to ~b", [hd(Fences), lists:last(Fences)]) || Fences =/= []],
    Most = io_lib:format("~b writer, ~b readers", [Writers, Readers]),
    Shown = io_lib:format("~0tp", [Name]),
    io_lib:format("~-10ts ~8b  ~-41ts ~22ts ~9b", [Shown, length(Fences), Range, Most, Value]).
