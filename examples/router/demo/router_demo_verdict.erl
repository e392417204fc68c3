%% Checks the promises against the log of the dynos (`router_demo_log') and the final state of the permits.
%%
%% A request counts from its start to its end on the dyno. If the router's process for it was killed, it counts until
%% the kill: the VM then releases the permit, and the dyno notices slightly later. All dynos of an app are counted
%% together.
%%
%% When a request starts, the requests in progress must not exceed the capacity. So an app that was scaled down gets no
%% request until it is below its new capacity. There is one exception: a request that looked up the app just before a
%% scaling may start just after it. Each request carries the capacity with which it was admitted, which identifies these
%% late requests. When a request with the new capacity starts, late requests in progress are not counted. A late request
%% itself may find as many requests as the larger of both capacities admits.
%%
%% Waits are judged by the router's statistics, where each time is the upper bound of a class, at most 1/8 too high. In
%% an app that refuses at once, no request may have waited. In another app, no wait may exceed the deadline, and at
%% least as many waits must have reached the deadline as requests were refused.
%%
%% The capacity must also be used: in a phase with many refusals, at least half of it must have been in use at some
%% time. (All permits were in use at each refusal, but some of their holders may not have reached their dynos yet.)
-module(router_demo_verdict).

-export([judge/2, lines/1]).

-export_type([verdict/0, phase/0, at_the_end/0]).

-type verdict() :: #{
    phases := [phase()],
    served := non_neg_integer(),
    reset := non_neg_integer(),
    disconnected := non_neg_integer(),
    killed := non_neg_integer(),
    %% Longest time that a dyno worked on a request after its process was killed.
    after_kill_ns := non_neg_integer(),
    at_the_end := at_the_end(),
    %% Descriptions of broken promises; empty if all were kept.
    broken := [string()]
}.

-type phase() :: #{
    host := router_apps:host(),
    dynos := non_neg_integer(),
    max_per := non_neg_integer(),
    from_ns := integer(),
    %% Requests in progress at the start of the phase; maximum when a request started, without late requests.
    at_start := non_neg_integer(),
    highest := non_neg_integer(),
    %% Maximum on one dyno.
    highest_on_one := non_neg_integer(),
    %% Time until the requests in progress fit the capacity; `never' if the phase ended before.
    above_ns := non_neg_integer() | never,
    begun := non_neg_integer(),
    %% Late requests among those that started.
    late := non_neg_integer(),
    %% Requests that the router refused.
    refused := non_neg_integer()
}.

-type at_the_end() :: #{
    permits := non_neg_integer(),
    holders := non_neg_integer(),
    granted := non_neg_integer(),
    released := non_neg_integer(),
    released_by_death := non_neg_integer(),
    not_held := non_neg_integer(),
    %% Number of keys that `canal_lock:audit/0' reports.
    differing := non_neg_integer(),
    waiting := non_neg_integer(),
    %% The sum of `canal_lock:waiting/1' of all apps.
    queued := non_neg_integer(),
    %% Requests that dynos started and did not end.
    at_work := non_neg_integer(),
    %% How long requests may wait, and the router's statistics.
    apps := #{router_apps:host() => {Wait_ms :: non_neg_integer(), router_stats:reading()}},
    _ => _
}.
%% `canal_lock:info/0' and additional counts.

-record(course, {
    phase :: phase(),
    before = [] :: [phase()],
    together = 0 :: non_neg_integer(),
    on_one = #{} :: #{router_dyno:address() => non_neg_integer()},
    %% Late requests of this phase that are in progress.
    late = [] :: [router_demo_log:request()],
    %% Per rule: number of violations, and the text of the first one.
    broken = #{} :: #{atom() => {pos_integer(), string()}}
}).

%% A request that starts later than this after a scaling must know of it. A connection to a dyno may take two seconds.
-define(LATE_NS, 3000000000).
%% A dyno must notice within this time that its request was killed.
-define(AFTER_KILL_NS, 5000000000).
%% A wait ends when its process runs: after the timer of the VM, the other processes that are ready, and the other
%% threads of the machine. With four more busy threads on two cores, that was 100 ms after the deadline.
-define(LATE_TIMER_NS, 250000000).
-define(MANY_REFUSED, 100).

-spec judge(router_demo_log:recording(), at_the_end()) -> verdict().
judge(#{requests := Requests, scalings := Scalings, kills := Kills}, #{apps := Apps} = AtTheEnd) ->
    Refused = maps:map(fun(_Host, {_, #{refused := Number}}) -> Number end, Apps),
    Hosts = lists:usort([Host || #{host := Host} <- Scalings]),
    Courses = [course(Host, Requests, Scalings, Kills, maps:get(Host, Refused)) || Host <- Hosts],
    Count = fun(Wanted) -> length([How || #{how := How} <- Requests, How =:= Wanted]) end,
    Phases = lists:append([lists:reverse(Before, [Phase]) || #course{before = Before, phase = Phase} <- Courses]),
    AfterKill_ns = lists:max([0 | [Ended - until(Request, Kills) || #{ended_ns := Ended} = Request <- Requests]]),
    Others = [untested(Phases), underused(Phases), slow_after_kill(AfterKill_ns), waits(Apps)],
    Broken = [violations(Course) || Course <- Courses] ++ Others,
    #{
        phases => Phases,
        served => Count(answered),
        reset => Count(reset),
        disconnected => Count(disconnected),
        killed => maps:size(Kills),
        after_kill_ns => AfterKill_ns,
        at_the_end => AtTheEnd,
        broken => lists:append(Broken) ++ left_over(AtTheEnd)
    }.

%% When a request stops counting.
until(#{process := Process, ended_ns := Ended}, Kills) ->
    min(Ended, maps:get(Process, Kills, Ended)).

course(Host, Requests, Scalings, Kills, Refused) ->
    [#{at_ns := Zero} = First | Later] = [Scaling || #{host := H} = Scaling <- Scalings, H =:= Host],
    Spans = [
        {Begun, until(Request, Kills), Request}
     || #{host := H, begun_ns := Begun} = Request <- Requests, H =:= Host, until(Request, Kills) > Begun
    ],
    %% Sorted by time. Of events at the same time, ends come first, because a start may have waited for an end.
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
        host => Host, dynos => Dynos, max_per => MaxPer, from_ns => At, at_start => Together,
        highest => 0, highest_on_one => 0, above_ns => never, begun => 0, late => 0, refused => Refused
    },
    settle(Phase, At, Together).

%% Until the end of the phase, `refused' is the number of refusals before it.
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
        {on_one, OnThis =< MaxPer, "~ts: ~b requests on a dyno with a limit of ~b", [Host, OnThis, MaxPer]},
        {
            scaled,
            Own =:= Capacity orelse IsLate,
            "~ts: a request admitted with capacity ~b instead of ~b",
            [Host, Own, Capacity]
        }
    ].

broken({_Rule, true, _Format, _Arguments}, Course) ->
    Course;
broken({Rule, false, Format, Arguments}, #course{broken = Broken} = Course) ->
    Again = fun({Times, First}) -> {Times + 1, First} end,
    First = lists:flatten(io_lib:format(Format, Arguments)),
    Course#course{broken = maps:update_with(Rule, Again, {1, First}, Broken)}.

violations(#course{broken = Broken}) ->
    [lists:flatten(io_lib:format("~ts (~b times)", [First, Times])) || {Times, First} <- maps:values(Broken)].

%% A phase without requests proves nothing.
untested(Phases) ->
    [
        lists:flatten(io_lib:format("~ts: no request while it had ~b dynos", [Host, Dynos]))
     || #{host := Host, dynos := Dynos, begun := 0} = Phase <- Phases,
        capacity(Phase) > 0
    ].

underused(Phases) ->
    [
        lists:flatten(io_lib:format(Format, [Host, Refused, Highest, Capacity]))
     || Format <- ["~ts: ~b refused, although at most ~b of ~b were in use"],
        #{host := Host, highest := Highest, at_start := AtStart, refused := Refused} = Phase <- Phases,
        Capacity <- [capacity(Phase)],
        Refused >= ?MANY_REFUSED,
        2 * max(AtStart, Highest) < Capacity
    ].

waits(Apps) ->
    [
        lists:flatten(io_lib:format(Format, [Host | Arguments]))
     || {Host, {Wait_ms, #{refused := Refused, waits := Waits}}} <- maps:to_list(Apps),
        {false, Format, Arguments} <- wait_rules(Wait_ms, Refused, Waits)
    ].

wait_rules(0, _Refused, Waits) ->
    [{Waits =:= [], "~ts: ~b requests waited, although it refuses at once", [router_stats:total(Waits)]}];
wait_rules(Wait_ms, Refused, Waits) ->
    Wait_ns = Wait_ms * 1000000,
    Longest_ns = router_stats:quantile(Waits, 1000),
    Whole = router_stats:total([Wait || {Below_ns, _} = Wait <- Waits, Below_ns > Wait_ns]),
    [
        %% An app in which no request waits proves nothing.
        {Waits =/= [], "~ts: no request waited", []},
        {
            Longest_ns =< Wait_ns + ?LATE_TIMER_NS,
            "~ts: a request waited for ~b ms instead of at most ~b",
            [ceil(Longest_ns / 1.0e6), Wait_ms]
        },
        {Refused =< Whole, "~ts: ~b refused, but only ~b waited until the deadline", [Refused, Whole]}
    ].

slow_after_kill(AfterKill_ns) ->
    [
        lists:flatten(io_lib:format("a dyno worked for ~.1f s after its request was killed", [AfterKill_ns / 1.0e9]))
     || AfterKill_ns > ?AFTER_KILL_NS
    ].

left_over(#{granted := Granted, released := Released, released_by_death := ByDeath} = AtTheEnd) ->
    Zeros = [
        {permits, "permits left"},
        {holders, "holders left"},
        {waiting, "requests that still wait"},
        {queued, "requests in the queues of the apps"},
        {differing, "keys whose count differs from their holders"},
        {at_work, "requests that dynos did not end"},
        {not_held, "releases by non-holders"}
    ],
    Left = [{maps:get(Name, AtTheEnd), What} || {Name, What} <- Zeros],
    Lost = {Granted - Released - ByDeath, "permits granted that were neither released nor reclaimed after a death"},
    [lists:concat([Number, " ", What]) || {Number, What} <- Left ++ [Lost], Number =/= 0].

-define(WAITS, "~-5ts ~8ts ~8ts ~8ts ~8ts ~8ts ~7ts ~7ts ~8ts").

%% The report of the verdict.
-spec lines(verdict()) -> [iolist()].
lines(#{phases := Phases, broken := Broken, at_the_end := AtTheEnd} = Verdict) ->
    #{served := Served, reset := Reset, disconnected := Disconnected} = Verdict,
    #{killed := Killed, after_kill_ns := AfterKill_ns} = Verdict,
    #{permits := Permits, granted := Granted, released_by_death := ByDeath} = AtTheEnd,
    #{waiting := Waiting, apps := Apps} = AtTheEnd,
    Sum = fun(Name) -> lists:sum([maps:get(Name, Stats) || {_, Stats} <- maps:values(Apps)]) end,
    Zero = lists:min([From || #{from_ns := From} <- Phases]),
    Titles = ["app", "dynos", "from", "capacity", "together", "on one"],
    WaitTitles = ["app", "deadline", "requests", "granted", "refused", "waited", "p50", "p99", "longest"],
    Outcome =
        case Broken of
            [] -> ["All promises were kept."];
            _ -> [["BROKEN  ", Promise] || Promise <- Broken]
        end,
    [io_lib:format("~-5ts ~5ts ~7ts ~8ts ~8ts ~6ts", Titles) | [phase_line(Phase, Zero) || Phase <- Phases]] ++
        ["(late: admitted with the capacity before a scaling, started after it)" || lists:any(fun is_late/1, Phases)] ++
        ["", io_lib:format(?WAITS, WaitTitles)] ++
        [waits_line(App) || App <- lists:sort(maps:to_list(Apps))] ++
        ["(waited: in the queue. p50, p99, longest: of the waits, at most 1/8 too high)"] ++
        [
            "",
            io_lib:format("~b requests served, ~b refused, ~b failed (~b reset by dynos)", [
                Served, Sum(refused), Sum(failed), Reset
            ]),
            io_lib:format("~b processes killed; dynos noticed within ~.1f ms", [Killed, AfterKill_ns / 1.0e6]),
            io_lib:format("~b requests aborted by disconnected clients or kills", [Disconnected]),
            io_lib:format("~b permits granted (two per request), ~b released by deaths, ~b left", [
                Granted, ByDeath, Permits
            ]),
            io_lib:format("~b requests still wait", [Waiting])
            | Outcome
        ].

waits_line({Host, {Wait_ms, #{granted := Granted, refused := Refused, waits := Waits}}}) ->
    Counts = [integer_to_list(Count) || Count <- [Granted + Refused, Granted, Refused, router_stats:total(Waits)]],
    Times = [wait_text(router_stats:quantile(Waits, Thousandths)) || Thousandths <- [500, 990, 1000]],
    io_lib:format(?WAITS, [Host, io_lib:format("~b ms", [Wait_ms])] ++ Counts ++ Times).

wait_text(0) -> "-";
wait_text(Wait_ns) -> io_lib:format("~b ms", [ceil(Wait_ns / 1.0e6)]).

phase_line(#{from_ns := From, at_start := AtStart, above_ns := Above_ns, late := Late} = Phase, Zero) ->
    #{host := Host, dynos := Dynos, highest := Highest, highest_on_one := HighestOnOne} = Phase,
    Shrunk = [shrink_text(AtStart, Above_ns) || AtStart > capacity(Phase)],
    Remarks = Shrunk ++ [io_lib:format("~b late", [Late]) || Late > 0],
    io_lib:format("~-5ts ~5b ~5.1f s ~8b ~8b ~6b  ~ts", [
        Host, Dynos, (From - Zero) / 1.0e9, capacity(Phase), Highest, HighestOnOne, lists:join("; ", Remarks)
    ]).

is_late(#{late := Late}) ->
    Late > 0.

shrink_text(AtStart, never) -> io_lib:format("~b at start, still above capacity at end", [AtStart]);
shrink_text(AtStart, Above_ns) ->
    io_lib:format("~b at start, within capacity after ~.1f ms", [AtStart, Above_ns / 1.0e6]).
