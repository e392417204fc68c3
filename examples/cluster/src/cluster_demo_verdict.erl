%% Whether the promises were kept, by what the clients have noted, by what the register was asked, and by what is left
%% on the nodes at the end.
%%
%% What is certain of a lock is that it was held from when its client knew of it to the beginning of the last look
%% that found it held: once it is not held, it never is again.
%%
%%     granted      look, held      look, held      look, not held
%%        |-----------[----]----------[-----]-----------[----]------>
%%        ^ certainly from here ...   ^ to here
%%
%% Of two locks that exclude each other these spans must not meet.
-module(cluster_demo_verdict).

-export([judge/2, is_empty/1, lines/1]).

-export_type([verdict/0, at_rest/0]).

%% Of each node: what is left there, by what it is; and locks that any member tells of.
-type at_rest() :: #{
    nodes := [{Node :: atom(), #{atom() => term()}}], locks := [term()], silent := [node()], in_vain := [iodata()]
}.

-type verdict() :: #{
    counts := #{atom() => non_neg_integer()},
    names := [{canal_lock_quorum:name(), of_name()}],
    %% In words. None: all were kept.
    broken := [string()]
}.

-type of_name() :: #{
    %% Of its writers.
    fences := [non_neg_integer()],
    %% How many held it together, at most.
    writers := non_neg_integer(),
    readers := non_neg_integer(),
    %% In the register.
    value := integer()
}.

-record(lock, {
    client :: cluster_demo_book:client(),
    lock :: cluster_demo_book:a_lock(),
    granted_ns :: integer(),
    %% When it was certainly held for the last time, if at all.
    to_ns = none :: integer() | none,
    ends = [] :: [given | lost]
}).

%% As a node has to be at rest.
-define(EMPTY, #{answering => 5, voting => true, voter_empty => true, held => 0, waiting => 0, pending_unlocks => 0}).

-spec judge(cluster_demo_book:record(), at_rest()) -> verdict().
judge(#{events := Events, log := Log, values := Values}, AtRest) ->
    Killed = [{Node, Life} || {_, demo, {killed, Node, Life}} <- Events],
    Locks = locks(Events),
    Names = lists:usort([Name || #lock{lock = {_, _, Of, _}} <- Locks, Name <- Of]),
    Counts = counts(Events, Locks, Killed),
    #{
        counts => Counts,
        names => [{Name, of_name(Name, Locks, Values)} || Name <- Names],
        broken => [
            lists:flatten(Sentence)
         || Sentence <-
                lists:append([alone(Name, locks_of(Name, Locks)) || Name <- Names]) ++
                    lists:append([growing(Name, locks_of(Name, Locks)) || Name <- Names]) ++
                    ended(Locks, Killed) ++ register_kept(Log, Values) ++ holders_served(Events) ++
                    written(Events, Log, Killed) ++ left_over(AtRest) ++ untried(Counts)
        ]
    }.

%% In the order in which they were granted.
locks(Events) ->
    Each = fun({At_ns, Client, What}, Found) -> lock(What, At_ns, Client, Found) end,
    lists:keysort(#lock.granted_ns, maps:values(lists:foldl(Each, #{}, Events))).

lock({granted, Lock}, At_ns, Client, Found) ->
    Found#{{Client, Lock} => #lock{client = Client, lock = Lock, granted_ns = At_ns}};
lock({held, Lock, Began_ns, _}, _, Client, Found) ->
    maps:update_with({Client, Lock}, fun(Known) -> Known#lock{to_ns = Began_ns} end, Found);
lock({lost, Lock}, _, Client, Found) ->
    ends(lost, {Client, Lock}, Found);
lock({given, _, {error, not_held}}, _, _, Found) ->
    %% Lost, and said so.
    Found;
lock({given, Lock, _}, _, Client, Found) ->
    ends(given, {Client, Lock}, Found);
lock(_, _, _, Found) ->
    Found.

ends(How, Key, Found) ->
    maps:update_with(Key, fun(#lock{ends = Ends} = Known) -> Known#lock{ends = [How | Ends]} end, Found).

locks_of(Name, Locks) ->
    [Lock || #lock{lock = {_, _, Names, _}} = Lock <- Locks, lists:member(Name, Names)].

of_name(Name, Locks, Values) ->
    Of = locks_of(Name, Locks),
    {Writers, Readers} = lists:partition(fun is_writer/1, Of),
    #{
        fences => lists:sort([Fence || #lock{lock = {_, _, _, Fence}} <- Writers]),
        writers => most(Writers),
        readers => most(Readers),
        value => maps:get(Name, Values, 0)
    }.

most(Locks) ->
    lists:max([0 | [1 + length(Others) || {_, Others} <- meetings(Locks)]]).

%% Each lock that was found held, and those that were granted before it and were held after it was granted. As locks
%% come in the order in which they were granted, few are still held.
meetings(Locks) ->
    {Meetings, _} = lists:mapfoldl(fun meeting/2, [], [Lock || #lock{to_ns = To} = Lock <- Locks, To =/= none]),
    Meetings.

meeting(#lock{granted_ns = From} = Lock, Before) ->
    Still = [Other || #lock{to_ns = To} = Other <- Before, To > From],
    {{Lock, Still}, [Lock | Still]}.

%%% Promises. Each answers with sentences of what was broken.

alone(Name, Locks) ->
    [
        io_lib:format("~0tp: held by ~ts and ~ts at once", [Name, who(Other), who(Lock)])
     || {Lock, Others} <- meetings(Locks), Other <- Others, is_writer(Other) orelse is_writer(Lock)
    ].

is_writer(#lock{lock = {_, Mode, _, _}}) -> Mode =:= write.

who(#lock{client = {Node, Life, Role}, lock = {_, _, _, Fence}}) ->
    io_lib:format("~ts (life ~b, ~ts, fence ~b)", [Node, Life, Role, Fence]).

%% Of writers, one after the other; and a reader's is not lower than that of the writer before it. Of those that were
%% never found held it is not certain whether they came before the next one or after it.
growing(Name, Locks) ->
    Fences = [Fence || #lock{lock = {_, write, _, Fence}} <- Locks],
    [io_lib:format("~0tp: a fence was given twice", [Name]) || length(lists:usort(Fences)) < length(Fences)] ++
        grow(Name, [Lock || #lock{to_ns = To} = Lock <- Locks, To =/= none], 0).

grow(_Name, [], _Highest) ->
    [];
grow(Name, [#lock{lock = {_, write, _, Fence}} = Lock | Later], Highest) ->
    [io_lib:format("~0tp: ~ts after fence ~b", [Name, who(Lock), Highest]) || Fence =< Highest] ++
        grow(Name, Later, max(Fence, Highest));
grow(Name, [#lock{lock = {_, read, _, Fence}} = Lock | Later], Highest) ->
    [io_lib:format("~0tp: reader ~ts after fence ~b", [Name, who(Lock), Highest]) || Fence < Highest] ++
        grow(Name, Later, Highest).

%% Given back or lost, once; or gone with its node.
ended(Locks, Killed) ->
    [
        io_lib:format("~0tp: ~ts ended ~b times", [Names, who(Lock), length(Ends)])
     || #lock{ends = Ends, lock = {_, _, Names, _}} = Lock <- Locks,
        length(Ends) > 1 orelse (Ends =:= [] andalso not is_killed(Lock, Killed))
    ].

is_killed(#lock{client = {Node, Life, _}}, Killed) ->
    lists:member({Node, Life}, Killed).

%% Without believing the register: nothing was written with a fence lower than one that it had seen before, nothing
%% else was refused, and each number is the one before and one more.
register_kept(Log, Values) ->
    {Kept, Broken} = lists:foldl(fun kept/2, {#{}, []}, Log),
    Numbers = maps:map(fun(_, {Value, _}) -> Value end, Kept),
    lists:reverse(Broken) ++ ["the register's numbers are not those that were written" || Numbers =/= Values].

kept({Who, Request, Answer}, {Kept, Broken}) ->
    Name = element(2, Request),
    Fence = element(3, Request),
    {Value, Highest} = maps:get(Name, Kept, {0, 0}),
    Faults =
        [{"was not refused, after fence", Highest} || is_ok(Answer), Fence < Highest] ++
            [{"was refused, after fence", Highest} || not is_ok(Answer), Fence >= Highest] ++
            [
                {"undid a number, which was", Value}
             || {{write, _, _, New}, {ok, _}} <- [{Request, Answer}], New =/= Value + 1
            ],
    Now =
        case {Request, Answer} of
            {{write, _, _, New}, {ok, _}} -> {New, max(Fence, Highest)};
            {{read, _, _}, {ok, _}} -> {Value, max(Fence, Highest)};
            _ -> {Value, Highest}
        end,
    Sentences = [io_lib:format("~0tp of ~0tp ~ts ~b", [Request, Who, Fault, What]) || {Fault, What} <- Faults],
    {Kept#{Name => Now}, Sentences ++ Broken}.

is_ok({ok, _}) -> true;
is_ok({refused, _}) -> false.

%% Who was found to hold the lock after the register had refused it, held it all the time.
holders_served(Events) ->
    [
        io_lib:format("~0tp of ~0tp was refused, and it held the lock", [Request, Client])
     || {_, Client, {Request, _, {refused, _}, true}} <- Events
    ].

%% What the clients know to be written is what the register has written; those of a killed node may not have heard of
%% it.
written(Events, Log, Killed) ->
    Known = lists:sort([{Client, Request} || {_, Client, {{write, _, _, _} = Request, _, {ok, _}, _}} <- Events]),
    Done = lists:sort([{Client, Request} || {Client, {write, _, _, _} = Request, {ok, _}} <- Log]),
    Unheard = [Write || {{Node, Life, _}, _} = Write <- Done -- Known, not lists:member({Node, Life}, Killed)],
    [io_lib:format("~0tp was told of ~0tp, and it was not written", [Who, What]) || {Who, What} <- Known -- Done] ++
        [io_lib:format("~0tp of ~0tp was written, and it was not told", [What, Who]) || {Who, What} <- Unheard].

%% Of a node at rest: nothing is left there, and it votes and hears all voters.
-spec is_empty({Node :: atom(), #{atom() => term()}}) -> boolean().
is_empty({_, State}) ->
    State =:= ?EMPTY.

left_over(#{nodes := Nodes, locks := Locks, silent := Silent, in_vain := InVain}) ->
    [
        io_lib:format("~ts at the end: ~0tp", [Node, maps:from_list(maps:to_list(State) -- maps:to_list(?EMPTY))])
     || {Node, State} <- Nodes, not is_empty({Node, State})
    ] ++
        [io_lib:format("a lock is left: ~0tp", [Lock]) || Lock <- Locks] ++
        [io_lib:format("~ts does not tell of its locks", [Node]) || Node <- Silent] ++
        [["waited in vain: ", What] || What <- InVain].

%% What was not put to the test was not kept either.
untried(Counts) ->
    Wanted = [
        {granted, "no lock was granted"},
        {readers, "no reader had a lock"},
        {at_risk, "no lock was at risk"},
        {lost, "no lock was lost"},
        {gone, "no holder was killed"},
        {no_quorum, "nobody was without a quorum"},
        {late, "the register had no late write to refuse"}
    ],
    [Sentence || {Key, Sentence} <- Wanted, maps:get(Key, Counts) =:= 0].

counts(Events, Locks, Killed) ->
    #{
        granted => length(Locks),
        readers => length([Lock || Lock <- Locks, not is_writer(Lock)]),
        given => length([Lock || #lock{ends = [given]} = Lock <- Locks]),
        lost => length([Lock || #lock{ends = [lost]} = Lock <- Locks]),
        gone => length([Lock || #lock{ends = []} = Lock <- Locks, is_killed(Lock, Killed)]),
        at_risk => length([Lock || {_, _, {at_risk, Lock}} <- Events]),
        no_quorum => length([Names || {_, _, {refused, Names, no_quorum}} <- Events]),
        timeout => length([Names || {_, _, {refused, Names, timeout}} <- Events]),
        looks => length([Lock || {_, _, {held, Lock, _, _}} <- Events]),
        writes => length([Lock || {_, _, {{write, _, _, _}, Lock, {ok, _}, _}} <- Events]),
        late => length([Lock || {_, _, {{write, _, _, _}, Lock, {refused, _}, _}} <- Events])
    }.

%% For people.
-spec lines(verdict()) -> [iolist()].
lines(#{counts := Counts, names := Names, broken := Broken}) ->
    Say = fun(Format, Keys) -> io_lib:format(Format, [maps:get(Key, Counts) || Key <- Keys]) end,
    [
        Say("~b locks granted, ~b of them to readers: ~b given back, ~b lost, ~b gone with a killed node", [
            granted, readers, given, lost, gone
        ]),
        Say("~b told that they are at risk; ~b refused for want of a quorum, ~b because of the time", [
            at_risk, no_quorum, timeout
        ]),
        Say("~b times a lock was looked at and found held; the register took ~b writes, and refused ~b late ones", [
            looks, writes, late
        ]),
        "",
        io_lib:format("~-10ts ~8ts  ~-36ts ~22ts ~9ts", [
            "name", "writers", "their fences", "most at once", "number"
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
    io_lib:format("~-10ts ~8b  ~-36ts ~22ts ~9b", [Shown, length(Fences), Range, Most, Value]).
