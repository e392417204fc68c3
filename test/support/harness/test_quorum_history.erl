%% Checks what clients of quorum locks recorded against the promises in docs/promises.md (Q1 and further). The result
%% depends only on the histories of all clients and on other known facts of the run.
%%
%% All times are nanoseconds of one clock, which all nodes of a machine share. A fact has the number of the client's
%% request. A lock was certainly held from the time when its client got the grant until the last time when a check of
%% the client found it held, because a lock that is not held is never held again:
%%
%%     asked          granted      held? yes       held? yes      held? no
%%       |---------------|---------[------]---------[------]--------[---]------>
%%                       ^ certainly held from here  ^ to here
%%
%% These spans must not overlap for two locks that exclude each other (Q1). The order of the fences follows from the
%% spans and the times of the requests (Q5).
-module(test_quorum_history).

-export([violations/1, locks/1, counts/1]).

-export_type([history/0, fact/0, client/0, known/0, violation/0, a_lock/0]).

-type time_ns() :: integer().
%% The number that a client gave to its request.
-type request() :: pos_integer().
%% The node, and a term that distinguishes the client from others there, also from those before a restart of the node.
-type client() :: {Index :: pos_integer() | atom(), term()}.

-type fact() ::
    {asked, time_ns(), request(), read | write, Names :: [term(), ...]}
    | {granted, time_ns(), request(), Fence :: non_neg_integer()}
    | {refused, time_ns(), request(), Reason :: term()}
    %% Several checks found it held: the first one began at the first time, the last one at the second time.
    | {held, time_ns(), Last :: time_ns(), request()}
    %% A check that began at the first time and ended at the second.
    | {not_held, time_ns(), time_ns(), request()}
    | {at_risk, time_ns(), request()}
    | {lost, time_ns(), request()}
    | {unlocking, time_ns(), request(), Function :: atom()}
    | {unlocked, time_ns(), request(), Answer :: term()}
    %% The client dies here and may hold locks.
    | {dying, time_ns()}.

-type known() ::
    %% Each lock that a client of this node held at `Had' is lost or unlocked at `By', unless the client is dead.
    {must_lose, Index :: pos_integer(), Had :: time_ns(), By :: time_ns()}
    %% No request that a client of this node makes between these times is granted between them, unless another client
    %% of the node passes its lock on.
    | {no_grants, Index :: pos_integer(), time_ns(), time_ns()}
    %% A client of this node is granted a lock between these times.
    | {recovers, Index :: pos_integer(), time_ns(), By :: time_ns()}
    %% The state that remains on this node when all clients have exited.
    | {left, Index :: pos_integer(), [term()]}.

-type history() :: #{clients := [{client(), [fact()]}], known := [known()]}.

-type violation() :: {Promise :: atom(), Details :: term()}.

-type a_lock() :: #{
    client := client(),
    request := request(),
    mode := read | write,
    names := [term()],
    fence := non_neg_integer(),
    asked := time_ns(),
    granted := time_ns(),
    certainly_held_until := time_ns() | never,
    over := time_ns() | never
}.

-record(lock, {
    client :: client(),
    request :: request(),
    mode :: read | write,
    names :: [term()],
    asked :: time_ns(),
    granted = never :: time_ns() | never,
    fence = none :: non_neg_integer() | none,
    %% The last time when it was certainly held.
    certainly_held_until = never :: time_ns() | never,
    %% The first time when it was certainly not held.
    over = never :: time_ns() | never,
    unlocking = never :: time_ns() | never
}).

%% Returns the violations in no particular order.
-spec violations(history()) -> [violation()].
violations(#{clients := Clients, known := Known}) ->
    Read = [read_client(Client, Facts) || {Client, Facts} <- Clients],
    Granted = granted(Read),
    lists:append([Wrong || {_, _, _, Wrong} <- Read]) ++
        lists:append([exclusive(Name, Of) ++ fences_grow(Name, Of) || {Name, Of} <- by_name(Granted)]) ++
        lists:append([check_known(Fact, Read, Granted) || Fact <- Known]).

%% The locks that were granted, in the order of the grants.
-spec locks(history()) -> [a_lock()].
locks(#{clients := Clients}) ->
    Granted = granted([read_client(Client, Facts) || {Client, Facts} <- Clients]),
    [details(Lock) || Lock <- lists:keysort(#lock.granted, Granted)].

%% The number of facts of each kind, because an empty history also has no violations.
-spec counts(history()) -> #{atom() => non_neg_integer()}.
counts(#{clients := Clients}) ->
    Kinds = [element(1, Fact) || {_, Facts} <- Clients, Fact <- Facts],
    Counted = maps:map(fun(_, Of) -> length(Of) end, maps:groups_from_list(fun(Kind) -> Kind end, Kinds)),
    Waits = lists:append([waits(Facts) || {_, Facts} <- Clients]),
    Counted#{longest_wait_ms => lists:max([0 | Waits]) div 1_000_000}.

%% The times from each request to its grant, in ns. A client makes one request at a time.
waits([{asked, From, Request, _, _}, {granted, To, Request, _} | Rest]) -> [To - From | waits(Rest)];
waits([_ | Rest]) -> waits(Rest);
waits([]) -> [].

%%% The facts of one client

granted(Read) ->
    [Lock || {_, _, Locks, _} <- Read, Lock = #lock{granted = At} <- Locks, At =/= never].

read_client(Client, Facts) ->
    {Locks, Wrong} = lists:foldl(fun(Fact, SoFar) -> fact(Fact, Client, SoFar) end, {#{}, []}, Facts),
    {Client, last_seen(Facts), maps:values(Locks), Wrong}.

%% The last time when the client certainly ran.
last_seen([]) ->
    never;
last_seen(Facts) ->
    case lists:last(Facts) of
        {held, _, Last, _} -> Last;
        Fact -> element(2, Fact)
    end.

fact({asked, At, Request, Mode, Names}, Client, {Locks, Wrong}) ->
    Lock = #lock{client = Client, request = Request, mode = Mode, names = lists:usort(Names), asked = At},
    {Locks#{Request => Lock}, Wrong};
fact({dying, _}, _, SoFar) ->
    SoFar;
fact(Fact, _, {Locks, Wrong}) ->
    Request =
        case Fact of
            {held, _, _, Of} -> Of;
            {not_held, _, _, Of} -> Of;
            _ -> element(3, Fact)
        end,
    Lock = maps:get(Request, Locks),
    {Locks#{Request => change(Fact, Lock)}, wrong(Fact, Lock) ++ Wrong}.

change({granted, At, _, Fence}, Lock) -> Lock#lock{granted = At, fence = Fence};
change({held, _, Last, _}, Lock) -> Lock#lock{certainly_held_until = Last};
change({not_held, _, To, _}, Lock) -> over(To, Lock);
change({lost, At, _}, Lock) -> over(At, Lock);
change({unlocking, At, _, _}, Lock) -> Lock#lock{unlocking = min(At, Lock#lock.unlocking)};
change({unlocked, At, _, Answer}, Lock) when Answer =:= ok; Answer =:= {error, not_held}; Answer =:= {error, timeout} ->
    over(At, Lock);
%% Any other answer means that the process that should answer died, so the lock may or may not be unlocked.
change(_, Lock) ->
    Lock.

%% `never' compares as later than all times: an integer is less than an atom.
over(At, Lock = #lock{over = Over}) ->
    Lock#lock{over = min(At, Over)}.

%% Q8. A lock that is lost also stays lost.
wrong({held, _, Last, _}, Lock = #lock{over = Over, unlocking = Unlocking}) when Over =/= never, Last > Over ->
    Promise =
        case Unlocking =/= never of
            true -> q8_unlock_is_final;
            false -> lost_is_final
        end,
    [{Promise, {held, Last, after_its_end, Over, details(Lock)}}];
wrong(_, _) ->
    [].

%%% Q1, and Q11 where a lock has several names

by_name(Locks) ->
    Pairs = [{Name, Lock} || Lock = #lock{names = Names} <- Locks, Name <- Names],
    maps:to_list(maps:groups_from_list(fun({Name, _}) -> Name end, fun({_, Lock}) -> Lock end, Pairs)).

exclusive(Name, Locks) ->
    Sorted = lists:keysort(#lock.granted, [Lock || Lock = #lock{certainly_held_until = Last} <- Locks, Last =/= never]),
    {_, Wrong} = lists:foldl(fun(Lock, SoFar) -> overlaps(Name, Lock, SoFar) end, {{none, none}, []}, Sorted),
    Wrong.

%% `Writer' and `Reader': of the locks that were granted before, those with the latest certain time.
overlaps(Name, Lock = #lock{mode = Mode}, {{Writer, Reader}, Wrong}) ->
    {Excluded, Latest} =
        case Mode of
            write -> {[Writer, Reader], {later(Lock, Writer), Reader}};
            read -> {[Writer], {Writer, later(Lock, Reader)}}
        end,
    New = [
        {broken_by_overlap(Other, Lock), {Name, details(Other), details(Lock)}}
     || Other <- Excluded, held_when_granted(Other, Lock)
    ],
    {Latest, New ++ Wrong}.

held_when_granted(none, _) -> false;
held_when_granted(#lock{certainly_held_until = Last}, #lock{granted = Granted}) -> Last > Granted.

broken_by_overlap(#lock{names = [_]}, #lock{names = [_]}) -> q1_alone;
broken_by_overlap(_, _) -> q11_all_or_nothing.

later(Lock, none) -> Lock;
later(Lock = #lock{certainly_held_until = Last}, #lock{certainly_held_until = Other}) when Last > Other -> Lock;
later(_, Other) -> Other.

%%% Q5

%% A lock that was requested, or certainly held, after another one was granted was granted later than that one. So its
%% fence is higher; the fence of a reader may be the same.
fences_grow(Name, Locks) ->
    Writers = [Lock || Lock = #lock{mode = write} <- Locks],
    Before = lists:keysort(#lock.granted, Writers),
    After = lists:keysort(1, [{not_before(Lock), Lock} || Lock <- Locks]),
    [
        {q5_fences_grow, {Name, the_same, details(One), details(Other)}}
     || {One, Other} <- duplicate_fences(lists:keysort(#lock.fence, Writers))
    ] ++ not_higher(Name, After, Before, [], []).

not_before(#lock{asked = Asked, certainly_held_until = never}) -> Asked;
not_before(#lock{certainly_held_until = Last}) -> Last.

duplicate_fences([One = #lock{fence = Fence} | Rest = [Other = #lock{fence = Fence} | _]]) ->
    [{One, Other} | duplicate_fences(Rest)];
duplicate_fences([_ | Rest]) ->
    duplicate_fences(Rest);
duplicate_fences([]) ->
    [].

%% `Highest': of the locks that were granted before, the two with the highest fences. One may be the lock itself.
not_higher(Name, After = [{At, Lock} | Rest], Before, Highest, Wrong) ->
    case Before of
        [Next = #lock{granted = Granted} | Later] when Granted < At ->
            Best = lists:sublist(lists:reverse(lists:keysort(#lock.fence, [Next | Highest])), 2),
            not_higher(Name, After, Later, Best, Wrong);
        _ ->
            New = [
                {q5_fences_grow, {Name, not_higher, details(Other), details(Lock)}}
             || Other <- Highest, not is_same(Other, Lock), not is_higher(Lock, Other)
            ],
            not_higher(Name, Rest, Before, Highest, New ++ Wrong)
    end;
not_higher(_, [], _, _, Wrong) ->
    Wrong.

is_same(#lock{client = Client, request = Request}, #lock{client = Client, request = Request}) -> true;
is_same(_, _) -> false.

is_higher(#lock{mode = write, fence = Fence}, #lock{fence = Other}) -> Fence > Other;
is_higher(#lock{mode = read, fence = Fence}, #lock{fence = Other}) -> Fence >= Other.

%%% Other known facts of the run

check_known({must_lose, Index, Had, By}, Read, Granted) ->
    LastSeen = maps:from_list([{Client, At} || {Client, At, _, _} <- Read]),
    [
        {lost_in_time, {not_lost_by, By, details(Lock)}}
     || Lock = #lock{client = Client, granted = When, over = Over, unlocking = Unlocking} <- at_node(Index, Granted),
        When < Had,
        Over > By,
        Unlocking > By,
        maps:get(Client, LastSeen) > By
    ];
check_known({no_grants, Index, From, To}, _, Granted) ->
    Here = at_node(Index, Granted),
    [
        {no_quorum_no_lock, {between, From, To, details(Lock)}}
     || Lock = #lock{asked = Asked, granted = When} <- Here, Asked > From, When < To, not is_passed_on(Lock, Here)
    ];
check_known({recovers, Index, From, By}, _, Granted) ->
    Grants = [When || #lock{granted = When} <- at_node(Index, Granted), When > From, When =< By],
    [{bounded_recovery, {nothing_granted, Index, From, By}} || Grants =:= []];
check_known({left, Index, Left}, _, _) ->
    [{q9_nothing_stays, {Index, Left}} || Left =/= []].

at_node(Index, Locks) ->
    [Lock || Lock = #lock{client = {At, _}} <- Locks, At =:= Index].

%% A lock that was passed on has the next fence, and was asked for before the one before it was unlocked.
is_passed_on(#lock{mode = write, names = Names, fence = Fence, asked = Asked}, Here) ->
    lists:any(
        fun(#lock{names = Others, fence = Before, unlocking = Unlocking}) ->
            Others =:= Names andalso Before =:= Fence - 1 andalso Unlocking > Asked
        end,
        Here
    );
is_passed_on(_, _) ->
    false.

details(#lock{client = Client, request = Request, mode = Mode, names = Names, fence = Fence} = Lock) ->
    #lock{asked = Asked, granted = Granted, certainly_held_until = Last, over = Over} = Lock,
    #{
        client => Client,
        request => Request,
        mode => Mode,
        names => Names,
        fence => Fence,
        asked => Asked,
        granted => Granted,
        certainly_held_until => Last,
        over => Over
    }.
