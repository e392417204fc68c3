%% Judges what clients of quorum locks have written down: whether it can have been so if the promises of
%% docs/quorum.md are kept. A function of histories, and of what else is known to have happened; it asks nobody.
%%
%% All times are nanoseconds of one clock (test_quorum_clients says which). A fact carries the number that the
%% client gave to its request. What is certain of a lock is that it was held from when its client knew that it was
%% granted until the last moment before it was found held: once it is not held, it never is again. So
%%
%%     asked          granted      held? yes       held? yes      held? no
%%       |---------------|---------[------]---------[------]--------[---]------>
%%                       ^ certainly held from here  ^ to here
%%
%% Of two locks that exclude each other those spans must not meet (Q1); and from them, and from who asked when the
%% other one was granted already, follows the order of fences (Q5).
-module(test_quorum_history).

-export([violations/1, counts/1]).

-export_type([history/0, fact/0, client/0, known/0, violation/0]).

-type time_ns() :: integer().
%% The number of a request of this client.
-type number_of() :: pos_integer().
%% Where it ran, and what tells it from others there, of the node's other lives too.
-type client() :: {Place :: pos_integer(), term()}.

-type fact() ::
    {asked, time_ns(), number_of(), read | write, Names :: [term(), ...]}
    | {granted, time_ns(), number_of(), Fence :: non_neg_integer()}
    | {refused, time_ns(), number_of(), Why :: term()}
    %% Found held again and again: the first time it was asked was after the one, the last time after the other.
    | {held, time_ns(), Last :: time_ns(), number_of()}
    %% Asked after the first time, answered before the second one.
    | {not_held, time_ns(), time_ns(), number_of()}
    | {at_risk, time_ns(), number_of()}
    | {lost, time_ns(), number_of()}
    | {giving, time_ns(), number_of(), How :: atom()}
    | {given, time_ns(), number_of(), Answer :: term()}
    %% The client ends here, whatever it holds.
    | {dying, time_ns()}.

-type known() ::
    %% Whatever clients there had at the first time they have lost or given back by the second one, if they live.
    {must_lose, Place :: pos_integer(), Had :: time_ns(), By :: time_ns()}
    %% Nothing is granted there that was asked for in between.
    | {no_grants, Place :: pos_integer(), time_ns(), time_ns()}
    %% Something is granted there in between.
    | {recovers, Place :: pos_integer(), time_ns(), By :: time_ns()}
    %% What is there after all clients have ended, and nothing happens any more: nothing should be.
    | {left, Place :: pos_integer(), [term()]}.

-type history() :: #{clients := [{client(), [fact()]}], known := [known()]}.

-type violation() :: {Promise :: atom(), Why :: term()}.

-record(lock, {
    client :: client(),
    number :: number_of(),
    mode :: read | write,
    names :: [term()],
    asked :: time_ns(),
    granted = never :: time_ns() | never,
    fence = none :: non_neg_integer() | none,
    %% When it was certainly held for the last time.
    last = never :: time_ns() | never,
    %% When it was known to be over: not held, lost, given back.
    over = never :: time_ns() | never,
    giving = never :: time_ns() | never,
    lost = never :: time_ns() | never
}).

%% In no order. Empty for a history in which all promises were kept, as far as one can see.
-spec violations(history()) -> [violation()].
violations(#{clients := Clients, known := Known}) ->
    Read = [read_client(Client, Facts) || {Client, Facts} <- Clients],
    Locks = lists:append([Locks || {_, _, Locks, _} <- Read]),
    Granted = [Lock || Lock = #lock{granted = At} <- Locks, At =/= never],
    ByName = by_name(Granted),
    lists:append([Wrong || {_, _, _, Wrong} <- Read]) ++
        lists:append([alone(Name, Of) || {Name, Of} <- ByName]) ++
        lists:append([fences_grow(Name, Of) || {Name, Of} <- ByName]) ++
        lists:append([as_known(Fact, Read, Granted) || Fact <- Known]).

%% What there was of each: a history in which nothing happens keeps all promises, too.
-spec counts(history()) -> #{atom() => non_neg_integer()}.
counts(#{clients := Clients}) ->
    Facts = lists:append([Facts || {_, Facts} <- Clients]),
    Counted = lists:foldl(fun(Fact, Sums) -> add(element(1, Fact), Sums) end, #{}, Facts),
    Waits = lists:append([waits(Its) || {_, Its} <- Clients]),
    Counted#{longest_wait_ms => lists:max([0 | Waits]) div 1_000_000}.

add(Kind, Sums) ->
    maps:update_with(Kind, fun(Sum) -> Sum + 1 end, 1, Sums).

%% From asking to having, where it came to that. A client has one request at a time.
waits([{asked, From, Number, _, _}, {granted, To, Number, _} | Rest]) -> [To - From | waits(Rest)];
waits([_ | Rest]) -> waits(Rest);
waits([]) -> [].

%%% What one client has seen

read_client(Client, Facts) ->
    {Locks, Wrong} = lists:foldl(fun(Fact, Sofar) -> fact(Fact, Client, Sofar) end, {#{}, []}, Facts),
    {Client, ends(Facts), maps:values(Locks), Wrong}.

%% When it was there for certain.
ends([]) -> never;
ends(Facts) -> ended(lists:last(Facts)).

ended({held, _, Last, _}) -> Last;
ended(Fact) -> element(2, Fact).

fact({asked, At, Number, Mode, Names}, Client, {Locks, Wrong}) ->
    Lock = #lock{client = Client, number = Number, mode = Mode, names = lists:usort(Names), asked = At},
    {Locks#{Number => Lock}, Wrong};
fact({dying, _}, _, Sofar) ->
    Sofar;
fact({Kind, _, _, Number} = Fact, _, {Locks, Wrong}) when Kind =:= held; Kind =:= not_held ->
    of_lock(Fact, maps:get(Number, Locks), Locks, Wrong);
fact(Fact, _, {Locks, Wrong}) ->
    of_lock(Fact, maps:get(element(3, Fact), Locks), Locks, Wrong).

of_lock(Fact, Lock = #lock{number = Number}, Locks, Wrong) ->
    {Locks#{Number => change(Fact, Lock)}, wrong(Fact, Lock) ++ Wrong}.

change({granted, At, _, Fence}, Lock) -> Lock#lock{granted = At, fence = Fence};
change({held, _, Last, _}, Lock) -> Lock#lock{last = Last};
change({not_held, _, To, _}, Lock) -> over(To, Lock);
change({lost, At, _}, Lock) -> (over(At, Lock))#lock{lost = min(At, Lock#lock.lost)};
change({giving, At, _, _}, Lock) -> Lock#lock{giving = min(At, Lock#lock.giving)};
change({given, At, _, Answer}, Lock) when Answer =:= ok; Answer =:= {error, not_held}; Answer =:= {error, timeout} ->
    over(At, Lock);
%% Somebody has ended the process that was to answer: whether it has been given back is not known.
change({given, _, _, _}, Lock) ->
    Lock;
change(_, Lock) ->
    Lock.

%% A number is less than an atom: never comes last.
over(At, Lock = #lock{over = Over}) ->
    Lock#lock{over = min(At, Over)}.

%% Q8, and: what is lost is lost for good.
wrong({held, _, Last, _}, Lock = #lock{over = Over, giving = Giving}) when Over =/= never, Last > Over ->
    Promise =
        case Giving =/= never of
            true -> q8_given_back;
            false -> lost_is_final
        end,
    [{Promise, {held, Last, after_its_end, Over, told(Lock)}}];
wrong(_, _) ->
    [].

%%% Q1, and Q11 where a lock is of several names

by_name(Locks) ->
    Pairs = [{Name, Lock} || Lock = #lock{names = Names} <- Locks, Name <- Names],
    maps:to_list(maps:groups_from_list(fun({Name, _}) -> Name end, fun({_, Lock}) -> Lock end, Pairs)).

alone(Name, Locks) ->
    Sorted = lists:keysort(#lock.granted, [Lock || Lock = #lock{last = Last} <- Locks, Last =/= never]),
    {_, Wrong} = lists:foldl(fun(Lock, Sofar) -> beside(Name, Lock, Sofar) end, {{none, none}, []}, Sorted),
    Wrong.

%% The writer, and the reader, that was held for longest of those that were granted before.
beside(Name, Lock = #lock{mode = Mode}, {{Writer, Reader}, Wrong}) ->
    Excluded =
        case Mode of
            write -> [Writer, Reader];
            read -> [Writer]
        end,
    New = [
        {meets(Other, Lock), {Name, told(Other), told(Lock)}}
     || Other <- Excluded, held_when_granted(Other, Lock)
    ],
    Longest =
        case Mode of
            write -> {longer(Lock, Writer), Reader};
            read -> {Writer, longer(Lock, Reader)}
        end,
    {Longest, New ++ Wrong}.

held_when_granted(none, _) -> false;
held_when_granted(#lock{last = Last}, #lock{granted = Granted}) -> Last > Granted.

meets(#lock{names = [_]}, #lock{names = [_]}) -> q1_alone;
meets(_, _) -> q11_all_or_nothing.

longer(Lock, none) -> Lock;
longer(Lock = #lock{last = Last}, #lock{last = Other}) when Last > Other -> Lock;
longer(_, Other) -> Other.

%%% Q5

%% Whoever asked when another one had been granted already, or was still held then, was granted later. So has the
%% higher fence; a reader, at least the same.
fences_grow(Name, Locks) ->
    Writers = [Lock || Lock = #lock{mode = write} <- Locks],
    Before = lists:keysort(#lock.granted, Writers),
    After = lists:keysort(1, [{not_before(Lock), Lock} || Lock <- Locks]),
    twice(Name, Writers) ++ higher(Name, After, Before, [], []).

not_before(#lock{asked = Asked, last = never}) -> Asked;
not_before(#lock{last = Last}) -> Last.

twice(Name, Writers) ->
    Sorted = lists:keysort(#lock.fence, Writers),
    [
        {q5_fences_grow, {Name, the_same, told(One), told(Other)}}
     || {One = #lock{fence = Fence}, Other = #lock{fence = Fence}} <- pairs(Sorted)
    ].

pairs([One | Rest = [Other | _]]) -> [{One, Other} | pairs(Rest)];
pairs(_) -> [].

%% `Highest': of those that were granted before, the two with the highest fences; one may be the lock itself.
higher(Name, After = [{At, Lock} | Rest], Before, Highest, Wrong) ->
    case Before of
        [Next = #lock{granted = Granted} | Later] when Granted < At ->
            Best = lists:sublist(lists:reverse(lists:keysort(#lock.fence, [Next | Highest])), 2),
            higher(Name, After, Later, Best, Wrong);
        _ ->
            New = [
                {q5_fences_grow, {Name, not_higher, told(Other), told(Lock)}}
             || Other <- Highest,
                not is_same(Other, Lock),
                not is_higher(Lock, Other)
            ],
            higher(Name, Rest, Before, Highest, New ++ Wrong)
    end;
higher(_, [], _, _, Wrong) ->
    Wrong.

is_same(#lock{client = Client, number = Number}, #lock{client = Client, number = Number}) -> true;
is_same(_, _) -> false.

is_higher(#lock{mode = write, fence = Fence}, #lock{fence = Other}) -> Fence > Other;
is_higher(#lock{mode = read, fence = Fence}, #lock{fence = Other}) -> Fence >= Other.

%%% What else is known

as_known({must_lose, Place, Had, By}, Read, Granted) ->
    Until = maps:from_list([{Client, End} || {Client, End, _, _} <- Read]),
    [
        {lost_in_time, {not_told_by, By, told(Lock)}}
     || Lock = #lock{client = Client = {At, _}, granted = When, over = Over, giving = Giving} <- Granted,
        At =:= Place,
        When < Had,
        Over > By,
        Giving > By,
        maps:get(Client, Until) > By
    ];
as_known({no_grants, Place, From, To}, _, Granted) ->
    [
        {no_quorum_no_lock, {between, From, To, told(Lock)}}
     || Lock = #lock{client = {At, _}, asked = Asked, granted = When} <- Granted,
        At =:= Place,
        Asked > From,
        When < To
    ];
as_known({recovers, Place, From, By}, _, Granted) ->
    Are = [When || #lock{client = {At, _}, granted = When} <- Granted, At =:= Place, When > From, When =< By],
    [{bounded_recovery, {nothing_granted, Place, From, By}} || Are =:= []];
as_known({left, Place, What}, _, _) ->
    [{q9_nothing_stays, {Place, What}} || What =/= []].

%% To be read by people.
told(#lock{client = Client, number = Number, mode = Mode, names = Names, fence = Fence} = Lock) ->
    #lock{asked = Asked, granted = Granted, last = Last, over = Over} = Lock,
    #{
        client => Client,
        request => Number,
        mode => Mode,
        names => Names,
        fence => Fence,
        asked => Asked,
        granted => Granted,
        certainly_held_until => Last,
        over => Over
    }.
