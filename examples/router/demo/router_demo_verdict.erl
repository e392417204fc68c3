%% Whether the promises were kept, by what the dynos have noted (`router_demo_book') and what the table says at the end.
%%
%% A request counts from when a dyno has begun it until the dyno has ended it; if the router's process for it was
%% killed, until it was killed: then the permit is back, and the dyno hears of it a moment later. What all dynos of an
%% app bear at a time is what they bear together.
%%
%% When a request begins, no more may be borne than the capacity. So an app that has shrunk, and bears more than it
%% should yet, gets no more. Each request brings the capacity that it was admitted with, for there is one exception: who
%% looked up the app just before a scaling may begin just after it. Such late ones come on top of what the new capacity
%% admits, and they themselves may find as much as either capacity admits.
%%
%% And not much less than the capacity: where many were refused, half of it has to have been borne at some time. (All of
%% it was out as permits when somebody was refused; but not all of their holders need have come to their dynos yet.)
-module(router_demo_verdict).

-export([judge/2, lines/1]).

-export_type([verdict/0, phase/0, at_the_end/0]).

-type verdict() :: #{
    phases := [phase()],
    served := non_neg_integer(),
    reset := non_neg_integer(),
    hung_up := non_neg_integer(),
    killed := non_neg_integer(),
    %% For how long a dyno has gone on with a request whose process had been killed, at most.
    after_kill_ns := non_neg_integer(),
    at_the_end := at_the_end(),
    %% In words. None: all were kept.
    broken := [string()]
}.

-type phase() :: #{
    host := router_apps:host(),
    dynos := non_neg_integer(),
    max_per := non_neg_integer(),
    from_ns := integer(),
    %% Borne together when it began; and at most, when a request had begun in it, without the late ones.
    at_first := non_neg_integer(),
    highest := non_neg_integer(),
    %% Borne by one dyno, at most.
    highest_on_one := non_neg_integer(),
    %% How long it took until no more was borne than the capacity; `never' before it ended.
    above_ns := non_neg_integer() | never,
    begun := non_neg_integer(),
    %% Of those that have begun.
    late := non_neg_integer(),
    %% By the router.
    refused := non_neg_integer()
}.

-type at_the_end() :: #{
    permits := non_neg_integer(),
    holders := non_neg_integer(),
    granted := non_neg_integer(),
    released := non_neg_integer(),
    given_back := non_neg_integer(),
    not_held := non_neg_integer(),
    %% Keys that `canal_lock:audit/0' has named.
    differing := non_neg_integer(),
    %% Requests that dynos have begun, and never ended.
    at_work := non_neg_integer(),
    %% Requests that the router has refused, and those that it could not answer by a dyno.
    refused := #{router_apps:host() => non_neg_integer()},
    failed := non_neg_integer(),
    _ => _
}.
%% Of `canal_lock:info/0', and more.

-record(course, {
    phase :: phase(),
    before = [] :: [phase()],
    together = 0 :: non_neg_integer(),
    on_one = #{} :: #{router_dyno:address() => non_neg_integer()},
    %% Late ones of this phase that are still borne.
    late = [] :: [router_demo_book:request()],
    %% What was broken, how often, and how it was the first time.
    broken = #{} :: #{atom() => {pos_integer(), string()}}
}).

%% Whoever begins later than this after a scaling has to know of it: to connect to a dyno may take two seconds.
-define(LATE_NS, 3000000000).
%% A dyno has to know by then that nobody waits for it any more.
-define(AFTER_KILL_NS, 5000000000).
-define(MANY_REFUSED, 100).

-spec judge(router_demo_book:record(), at_the_end()) -> verdict().
judge(#{requests := Requests, scalings := Scalings, kills := Kills}, #{refused := Refused} = AtTheEnd) ->
    Hosts = lists:usort([Host || #{host := Host} <- Scalings]),
    Courses = [course(Host, Requests, Scalings, Kills, maps:get(Host, Refused)) || Host <- Hosts],
    Count = fun(Wanted) -> length([How || #{how := How} <- Requests, How =:= Wanted]) end,
    Phases = lists:append([lists:reverse(Before, [Phase]) || #course{before = Before, phase = Phase} <- Courses]),
    AfterKill_ns = lists:max([0 | [Ended - until(Request, Kills) || #{ended_ns := Ended} = Request <- Requests]]),
    Broken = [in_words(Course) || Course <- Courses] ++ [unasked(Phases), unfilled(Phases), untold(AfterKill_ns)],
    #{
        phases => Phases,
        served => Count(answered),
        reset => Count(reset),
        hung_up => Count(hung_up),
        killed => maps:size(Kills),
        after_kill_ns => AfterKill_ns,
        at_the_end => AtTheEnd,
        broken => lists:append(Broken) ++ left_over(AtTheEnd)
    }.

%% When a request has ceased to count.
until(#{process := Process, ended_ns := Ended}, Kills) ->
    min(Ended, maps:get(Process, Kills, Ended)).

course(Host, Requests, Scalings, Kills, Refused) ->
    [#{at_ns := Zero} = First | Later] = [Scaling || #{host := H} = Scaling <- Scalings, H =:= Host],
    Spans = [
        {Begun, until(Request, Kills), Request}
     || #{host := H, begun_ns := Begun} = Request <- Requests, H =:= Host, until(Request, Kills) > Begun
    ],
    %% In the order of their times; at one and the same, what begins may have waited for what ends.
    Events = lists:sort(
        [{At, 1, {scaling, Scaling}} || #{at_ns := At} = Scaling <- Later] ++
            [{Until, 2, {ends, Request}} || {_, Until, Request} <- Spans] ++
            [{Begun, 3, {begins, Request}} || {Begun, _, Request} <- Spans]
    ),
    Step = fun({At, _, Event}, Course) -> step(Event, At, Course) end,
    #course{phase = Last} = Course = lists:foldl(Step, #course{phase = phase(First, Zero, 0)}, Events),
    Course#course{phase = over(Last, Refused)}.

phase(#{host := Host, max_per := MaxPer, dynos := Dynos, refused := Refused}, At, Together) ->
    Phase = #{
        host => Host, dynos => Dynos, max_per => MaxPer, from_ns => At, at_first => Together,
        highest => 0, highest_on_one => 0, above_ns => never, begun => 0, late => 0, refused => Refused
    },
    settle(Phase, At, Together).

%% Until now it has said how many were refused before it.
over(#{refused := Before} = Phase, Refused) ->
    Phase#{refused := Refused - Before}.

settle(#{above_ns := never, from_ns := From, max_per := MaxPer, dynos := Dynos} = Phase, At, Together) when
    Together =< MaxPer * Dynos
->
    Phase#{above_ns := At - From};
settle(Phase, _At, _Together) ->
    Phase.

capacity(#{max_per := MaxPer, dynos := Dynos}) ->
    MaxPer * Dynos.

step({scaling, #{refused := Refused} = Scaling}, At, Course) ->
    #course{phase = Phase, before = Before, together = Together} = Course,
    Course#course{phase = phase(Scaling, At, Together), before = [over(Phase, Refused) | Before], late = []};
step({ends, #{dyno := Dyno} = Request}, At, Course) ->
    #course{phase = Phase, together = Before, on_one = OnOne, late = Late} = Course,
    Together = Before - 1,
    Course#course{
        phase = settle(Phase, At, Together),
        together = Together,
        on_one = maps:update_with(Dyno, fun(Requests) -> Requests - 1 end, OnOne),
        late = lists:delete(Request, Late)
    };
step({begins, #{dyno := Dyno, capacity := Own} = Request}, At, Course) ->
    #course{phase = Phase, together = Before, on_one = OnOne, late = Late} = Course,
    #{highest := Highest, highest_on_one := HighestOnOne, begun := Begun, late := AllLate} = Phase,
    Together = Before + 1,
    OnThis = maps:get(Dyno, OnOne, 0) + 1,
    NewlyLate = [Request || Own =/= capacity(Phase)],
    InTime = [Together - length(Late) || NewlyLate =:= []],
    Now = Phase#{
        highest := lists:max([Highest | InTime]),
        highest_on_one := max(HighestOnOne, OnThis),
        begun := Begun + 1,
        late := AllLate + length(NewlyLate)
    },
    After = Course#course{
        phase = Now, together = Together, on_one = OnOne#{Dyno => OnThis}, late = NewlyLate ++ Late
    },
    lists:foldl(fun broken/2, After, rules(At, Own, OnThis, After)).

rules(At, Own, OnThis, #course{phase = Phase, before = Before, together = Together, late = Late}) ->
    #{host := Host, max_per := MaxPer, from_ns := From} = Phase,
    Capacity = capacity(Phase),
    IsLate = At - From =< ?LATE_NS andalso [Own || Last <- lists:sublist(Before, 1), capacity(Last) =:= Own] =/= [],
    {Counted, Most} =
        case Own of
            Capacity -> {Together - length(Late), Capacity};
            _ -> {Together, max(Own, Capacity)}
        end,
    [
        {together, Counted =< Most, "~ts: ~b requests together instead of ~b", [Host, Counted, Most]},
        {on_one, OnThis =< MaxPer, "~ts: ~b requests on a dyno that bears ~b", [Host, OnThis, MaxPer]},
        {
            scaled,
            Own =:= Capacity orelse IsLate,
            "~ts: a request admitted to ~b instead of ~b",
            [Host, Own, Capacity]
        }
    ].

broken({_Rule, true, _Format, _Arguments}, Course) ->
    Course;
broken({Rule, false, Format, Arguments}, #course{broken = Broken} = Course) ->
    Again = fun({Times, First}) -> {Times + 1, First} end,
    First = lists:flatten(io_lib:format(Format, Arguments)),
    Course#course{broken = maps:update_with(Rule, Again, {1, First}, Broken)}.

in_words(#course{broken = Broken}) ->
    [lists:flatten(io_lib:format("~ts (~b times)", [First, Times])) || {Times, First} <- maps:values(Broken)].

%% What was not put to the test was not kept either.
unasked(Phases) ->
    [
        lists:flatten(io_lib:format("~ts: no request while it had ~b dynos", [Host, Dynos]))
     || #{host := Host, dynos := Dynos, begun := 0} = Phase <- Phases,
        capacity(Phase) > 0
    ].

unfilled(Phases) ->
    [
        lists:flatten(io_lib:format(Format, [Host, Refused, Highest, Capacity]))
     || Format <- ["~ts: ~b refused, with never more than ~b of ~b there"],
        #{host := Host, highest := Highest, at_first := AtFirst, refused := Refused} = Phase <- Phases,
        Capacity <- [capacity(Phase)],
        Refused >= ?MANY_REFUSED,
        2 * max(AtFirst, Highest) < Capacity
    ].

untold(AfterKill_ns) ->
    [
        lists:flatten(io_lib:format("a dyno at work for ~.1f s after its request was killed", [AfterKill_ns / 1.0e9]))
     || AfterKill_ns > ?AFTER_KILL_NS
    ].

left_over(#{granted := Granted, released := Released, given_back := GivenBack} = AtTheEnd) ->
    Zeros = [
        {permits, "permits left"},
        {holders, "holders left"},
        {differing, "keys whose count is not what their holders have"},
        {at_work, "requests that dynos have never ended"},
        {not_held, "releases of what was not held"}
    ],
    Left = [{maps:get(Name, AtTheEnd), What} || {Name, What} <- Zeros],
    Lost = {Granted - Released - GivenBack, "permits granted that were neither released nor given back"},
    [lists:concat([Number, " ", What]) || {Number, What} <- Left ++ [Lost], Number =/= 0].

%% For people.
-spec lines(verdict()) -> [iolist()].
lines(#{phases := Phases, broken := Broken, at_the_end := AtTheEnd} = Verdict) ->
    #{served := Served, reset := Reset, killed := Killed, hung_up := HungUp, after_kill_ns := AfterKill_ns} = Verdict,
    #{permits := Permits, granted := Granted, given_back := GivenBack, failed := Failed} = AtTheEnd,
    Refused = lists:sum(maps:values(maps:get(refused, AtTheEnd))),
    Zero = lists:min([From || #{from_ns := From} <- Phases]),
    Titles = ["app", "dynos", "from", "capacity", "together", "on one"],
    Outcome =
        case Broken of
            [] -> ["All promises were kept."];
            _ -> [["BROKEN  ", Promise] || Promise <- Broken]
        end,
    [io_lib:format("~-5ts ~5ts ~7ts ~8ts ~8ts ~6ts", Titles) | [phase_line(Phase, Zero) || Phase <- Phases]] ++
        ["(late: looked up the app before a scaling, begun after it)" || lists:any(fun is_late/1, Phases)] ++
        [
            "",
            io_lib:format("~b requests served, ~b refused, ~b failed (dynos broke off ~b)", [
                Served, Refused, Failed, Reset
            ]),
            io_lib:format("~b processes killed; dynos have noticed within ~.1f ms", [Killed, AfterKill_ns / 1.0e6]),
            io_lib:format("~b requests left by their clients or with the killed", [HungUp]),
            io_lib:format("~b permits granted (two to a request), ~b given back by deaths, ~b left", [
                Granted, GivenBack, Permits
            ])
            | Outcome
        ].

phase_line(#{from_ns := From, at_first := AtFirst, above_ns := Above_ns, late := Late} = Phase, Zero) ->
    #{host := Host, dynos := Dynos, highest := Highest, highest_on_one := HighestOnOne} = Phase,
    Shrunk = [come_down(AtFirst, Above_ns) || AtFirst > capacity(Phase)],
    Remarks = Shrunk ++ [io_lib:format("~b late", [Late]) || Late > 0],
    io_lib:format("~-5ts ~5b ~5.1f s ~8b ~8b ~6b  ~ts", [
        Host, Dynos, (From - Zero) / 1.0e9, capacity(Phase), Highest, HighestOnOne, lists:join("; ", Remarks)
    ]).

is_late(#{late := Late}) ->
    Late > 0.

come_down(AtFirst, never) -> io_lib:format("down from ~b, not to its end", [AtFirst]);
come_down(AtFirst, Above_ns) -> io_lib:format("down from ~b in ~.1f ms", [AtFirst, Above_ns / 1.0e6]).
