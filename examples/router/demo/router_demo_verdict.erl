%% Checks the promises against the records of the demo (`router_demo_log') and the final state of the permits.
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
-module(router_demo_verdict).

-export([judge/2, lines/1]).

-export_type([verdict/0, course/0, at_the_end/0]).

-type verdict() :: #{
    courses := [course()],
    at_the_end := at_the_end(),
    %% Descriptions of broken promises; empty if all were kept.
    broken := [string()]
}.

-type at_the_end() :: #{atom() => term()}.
%% `canal_lock:info/0', and: `differing', the number of keys that `canal_lock:audit/0' reports; `queued', the sum of
%% `canal_lock:waiting/1' of all apps; `at_work', the requests that dynos started and did not end; `apps', the Wait_ms
%% of each; `late_ms', how long after its deadline a wait may end; and `clients', whose last requests are not recorded.

%% The time between two scalings of an app.
-record(phase, {
    dynos :: non_neg_integer(),
    max_per :: non_neg_integer(),
    from_ns :: integer(),
    %% Requests in progress at the start of the phase; maximum when a request started, without late requests.
    at_start :: non_neg_integer(),
    highest = 0 :: non_neg_integer(),
    %% Maximum on one dyno.
    on_one = 0 :: non_neg_integer(),
    begun = 0 :: non_neg_integer(),
    %% Late requests among those that started.
    late = 0 :: non_neg_integer(),
    %% Refusals that clients got.
    refused = 0 :: non_neg_integer()
}).

-record(course, {
    host :: router:host(),
    %% The present one first; at the end in order.
    phases = [] :: [#phase{}],
    %% The requests in progress that count.
    open = #{} :: #{pid() => {Dyno :: router:address(), late | in_time}},
    killed = #{} :: #{pid() => At_ns :: integer()},
    %% Longest time that a dyno worked on a request after its process was killed.
    after_kill_ns = 0 :: non_neg_integer(),
    ends = #{} :: #{answered | reset | disconnected => pos_integer()},
    admitted = 0 :: non_neg_integer(),
    unanswered = 0 :: non_neg_integer(),
    %% Each as seen by its client.
    refused_ns = [] :: [non_neg_integer()],
    waits_ns = [] :: [non_neg_integer()],
    %% Per rule: number of violations, and the text of the first one.
    broken = #{} :: #{atom() => {pos_integer(), string()}}
}).

-opaque course() :: #course{}.

%% A request that starts later than this after a scaling must know of it. A connection to a dyno may take two seconds.
-define(LATE_NS, 3000000000).
%% A dyno must notice within this time that its request was killed.
-define(AFTER_KILL_NS, 5000000000).
-define(MANY_REFUSED, 100).

-spec judge([{At_ns :: integer(), router_demo_log:event()}], at_the_end()) -> verdict().
judge(Events, #{apps := Apps} = AtTheEnd) ->
    %% Of events at the same time, ends come before starts, because a start may have waited for an end.
    Sorted = lists:sort([{At_ns, order(Event), Event} || {At_ns, Event} <- Events]),
    Courses = [
        course(#course{host = Host}, [{At_ns, Event} || {At_ns, _, Event} <- Sorted, element(2, Event) =:= Host])
     || Host <- lists:sort(maps:keys(Apps))
    ],
    Rules = lists:flatmap(fun(Course) -> course_rules(Course, AtTheEnd) end, Courses) ++ end_rules(AtTheEnd, Courses),
    #{
        courses => Courses,
        at_the_end => AtTheEnd,
        broken => lists:flatmap(fun violations/1, Courses) ++ [text(Format, Values) || {false, Format, Values} <- Rules]
    }.

order({scaled, _, _, _}) -> 1;
order({begins, _, _, _, _}) -> 3;
order(_) -> 2.

course(Course, Events) ->
    #course{phases = Phases} = Last = lists:foldl(fun step/2, Course, Events),
    Last#course{phases = lists:reverse(Phases)}.

step({At_ns, {scaled, _, MaxPer, Dynos}}, #course{phases = Phases, open = Open} = Course) ->
    Phase = #phase{dynos = Dynos, max_per = MaxPer, from_ns = At_ns, at_start = map_size(Open)},
    %% From now on, late requests count as any other.
    Course#course{phases = [Phase | Phases], open = maps:map(fun(_, {Dyno, _}) -> {Dyno, in_time} end, Open)};
step({At_ns, {killed, _, Pid}}, #course{open = Open, killed = Killed} = Course) ->
    Course#course{open = maps:remove(Pid, Open), killed = Killed#{Pid => At_ns}};
step({At_ns, {ends, _, Pid, How}}, #course{open = Open, killed = Killed, ends = Ends, after_kill_ns = Most} = Course) ->
    AfterKill_ns = max(Most, At_ns - maps:get(Pid, Killed, At_ns)),
    Course#course{open = maps:remove(Pid, Open), ends = add(How, Ends), after_kill_ns = AfterKill_ns};
step({_, {admitted, _, _, Waited_ns}}, #course{admitted = Admitted, waits_ns = Waits_ns} = Course) ->
    Course#course{admitted = Admitted + 1, waits_ns = Waited_ns ++ Waits_ns};
step({_, {unanswered, _}}, #course{unanswered = Unanswered} = Course) ->
    Course#course{unanswered = Unanswered + 1};
step({_, {refused, _, Took_ns, Waited_ns}}, Course) ->
    #course{phases = [Phase | Before], refused_ns = Refused_ns, waits_ns = Waits_ns} = Course,
    Phases = [Phase#phase{refused = Phase#phase.refused + 1} | Before],
    Course#course{phases = Phases, refused_ns = [Took_ns | Refused_ns], waits_ns = Waited_ns ++ Waits_ns};
step({_, {begins, _, Pid, _, _}}, #course{killed = Killed} = Course) when is_map_key(Pid, Killed) ->
    Course;
step({At_ns, {begins, _, Pid, Dyno, Own}}, #course{phases = [Phase | Before], open = Others} = Course) ->
    Kind = case capacity(Phase) of Own -> in_time; _ -> late end,
    Open = Others#{Pid => {Dyno, Kind}},
    Together =
        case Kind of
            in_time -> length([in_time || {_, in_time} <- maps:values(Open)]);
            late -> map_size(Open)
        end,
    OnOne = length([D || {D, _} <- maps:values(Open), D =:= Dyno]),
    Now = Phase#phase{
        highest = max(Phase#phase.highest, case Kind of in_time -> Together; late -> 0 end),
        on_one = max(Phase#phase.on_one, OnOne),
        begun = Phase#phase.begun + 1,
        late = Phase#phase.late + case Kind of in_time -> 0; late -> 1 end
    },
    lists:foldl(
        fun check/2,
        Course#course{phases = [Now | Before], open = Open},
        start_rules(At_ns, Own, Together, OnOne, Course)
    ).

add(Name, Counts) ->
    maps:update_with(Name, fun(Count) -> Count + 1 end, 1, Counts).

capacity(#phase{max_per = MaxPer, dynos = Dynos}) ->
    MaxPer * Dynos.

start_rules(At_ns, Own, Together, OnOne, #course{host = Host, phases = [Phase | Before]}) ->
    #phase{max_per = MaxPer, from_ns = From_ns} = Phase,
    Capacity = capacity(Phase),
    Most = max(Own, Capacity),
    IsLate = At_ns - From_ns =< ?LATE_NS andalso Before =/= [] andalso capacity(hd(Before)) =:= Own,
    [
        {together, Together =< Most, "~ts: ~b requests together instead of ~b", [Host, Together, Most]},
        {on_one, OnOne =< MaxPer, "~ts: ~b requests on a dyno with a limit of ~b", [Host, OnOne, MaxPer]},
        {scaled, Own =:= Capacity orelse IsLate, "~ts: a request admitted with capacity ~b instead of ~b", [
            Host, Own, Capacity
        ]}
    ].

check({_Rule, true, _Format, _Values}, Course) ->
    Course;
check({Rule, false, Format, Values}, #course{broken = Broken} = Course) ->
    Again = fun({Times, First}) -> {Times + 1, First} end,
    Course#course{broken = maps:update_with(Rule, Again, {1, text(Format, Values)}, Broken)}.

violations(#course{broken = Broken}) ->
    [text("~ts (~b times)", [First, Times]) || {Times, First} <- maps:values(Broken)].

course_rules(#course{host = Host, phases = Phases, after_kill_ns = AfterKill_ns} = Course, AtTheEnd) ->
    #{apps := #{Host := Wait_ms}, late_ms := Late_ms} = AtTheEnd,
    [
        {AfterKill_ns =< ?AFTER_KILL_NS, "~ts: a dyno worked for ~.1f s after its request was killed", [
            Host, AfterKill_ns / 1.0e9
        ]}
        | lists:flatmap(fun(Phase) -> phase_rules(Host, Phase) end, Phases) ++ wait_rules(Course, Wait_ms, Late_ms)
    ].

phase_rules(Host, Phase) ->
    #phase{dynos = Dynos, begun = Begun, refused = Refused, at_start = AtStart, highest = Highest} = Phase,
    Capacity = capacity(Phase),
    [
        %% A phase without requests proves nothing.
        {Begun > 0 orelse Capacity =:= 0, "~ts: no request while it had ~b dynos", [Host, Dynos]},
        {
            Refused < ?MANY_REFUSED orelse 2 * max(AtStart, Highest) >= Capacity,
            "~ts: ~b refused, although at most ~b of ~b were in use",
            [Host, Refused, Highest, Capacity]
        }
    ].

wait_rules(#course{host = Host, waits_ns = Waits_ns}, 0, _Late_ms) ->
    [{Waits_ns =:= [], "~ts: ~b requests waited, although it refuses at once", [Host, length(Waits_ns)]}];
wait_rules(#course{host = Host, waits_ns = Waits_ns, refused_ns = Refused_ns}, Wait_ms, Late_ms) ->
    Longest_ns = lists:max([0 | Waits_ns]),
    Early = length([Took_ns || Took_ns <- Refused_ns, Took_ns < 1000000 * Wait_ms]),
    [
        %% An app in which no request waits proves nothing.
        {Waits_ns =/= [], "~ts: no request waited", [Host]},
        {
            Longest_ns =< 1000000 * (Wait_ms + Late_ms),
            "~ts: a request waited for ~b ms instead of at most ~b",
            [Host, ceil(Longest_ns / 1.0e6), Wait_ms]
        },
        {Early =:= 0, "~ts: ~b refused before their deadline of ~b ms", [Host, Early, Wait_ms]}
    ].

end_rules(#{granted := Granted, released := Released, released_by_death := ByDeath} = AtTheEnd, Courses) ->
    Zeros = [
        {permits, "permits left"},
        {holders, "holders left"},
        {waiting, "requests that still wait"},
        {queued, "requests in the queues of the apps"},
        {differing, "keys whose count differs from their holders"},
        {at_work, "requests that dynos did not end"},
        {not_held, "releases by non-holders"}
    ],
    Lost = {Granted - Released - ByDeath, "permits granted that were neither released nor reclaimed after a death"},
    Numbers = [Lost | [{maps:get(Name, AtTheEnd), What} || {Name, What} <- Zeros]],
    %% A request that is answered releases its two permits itself.
    Unanswered = lists:sum([maps:get(clients, AtTheEnd) | [Number || #course{unanswered = Number} <- Courses]]),
    Few = ByDeath =< 2 * Unanswered,
    [{Few, "~b permits released by deaths, but at most ~b requests not answered", [ByDeath, Unanswered]}] ++
        [{Number =:= 0, "~b ~ts", [Number, What]} || {Number, What} <- Numbers].

text(Format, Values) ->
    lists:flatten(io_lib:format(Format, Values)).

-define(PHASE, "~-4ts ~6ts ~7ts ~8ts ~8ts ~7ts ~13ts ~13ts").
-define(WAITS, "~-4ts ~8ts ~9ts ~9ts ~9ts ~7ts ~7ts ~7ts").
-define(ENDS, "~-4ts ~8ts ~8ts ~13ts ~8ts ~16ts").

%% The report of the verdict.
-spec lines(verdict()) -> [iolist()].
lines(#{courses := Courses, broken := Broken, at_the_end := #{apps := Apps} = AtTheEnd}) ->
    #{permits := Permits, granted := Granted, released_by_death := ByDeath, waiting := Waiting} = AtTheEnd,
    Zero_ns = lists:min([From_ns || #course{phases = [#phase{from_ns = From_ns} | _]} <- Courses]),
    ["", text(?PHASE, ["app", "dynos", "from", "capacity", "together", "on one", "when it began", "begun before"])] ++
        [phase_line(Host, Phase, Zero_ns) || #course{host = Host, phases = Phases} <- Courses, Phase <- Phases] ++
        ["", text(?WAITS, ["app", "deadline", "admitted", "refused", "waited", "p50", "p99", "longest"])] ++
        [waits_line(Course, Apps) || Course <- Courses] ++
        ["", text(?ENDS, ["app", "answered", "reset", "disconnected", "killed", "noticed within"])] ++
        [ends_line(Course) || Course <- Courses] ++
        [
            "",
            text("~b permits granted (two per request), ~b released by deaths, ~b left; ~b requests still wait", [
                Granted, ByDeath, Permits, Waiting
            ])
        ] ++ ["All promises were kept." || Broken =:= []] ++ [["BROKEN  ", Promise] || Promise <- Broken].

phase_line(Host, #phase{dynos = Dynos, from_ns = From_ns, at_start = AtStart, late = Late} = Phase, Zero_ns) ->
    Counts = [capacity(Phase), Phase#phase.highest, Phase#phase.on_one, AtStart, Late],
    From = text("~.1f s", [(From_ns - Zero_ns) / 1.0e9]),
    text(?PHASE, [Host, number(Dynos), From | lists:map(fun number/1, Counts)]).

waits_line(#course{host = Host, admitted = Admitted, refused_ns = Refused_ns, waits_ns = Waits_ns}, Apps) ->
    Sorted = lists:sort(Waits_ns),
    Counts = [number(Count) || Count <- [Admitted, length(Refused_ns), length(Waits_ns)]],
    text(?WAITS, [Host, time(maps:get(Host, Apps)) | Counts] ++ [share(Share, Sorted) || Share <- [0.5, 0.99, 1.0]]).

ends_line(#course{host = Host, ends = Ends, killed = Killed, after_kill_ns = AfterKill_ns}) ->
    Counts = [maps:get(How, Ends, 0) || How <- [answered, reset, disconnected]] ++ [map_size(Killed)],
    text(?ENDS, [Host | lists:map(fun number/1, Counts)] ++ [time(ceil(AfterKill_ns / 1.0e6))]).

share(_Share, []) -> "-";
share(Share, Sorted_ns) -> time(ceil(lists:nth(ceil(Share * length(Sorted_ns)), Sorted_ns) / 1.0e6)).

time(Ms) -> number(Ms) ++ " ms".

number(Number) -> integer_to_list(Number).
