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

-export([judge/2]).

-export_type([at_the_end/0]).

-type at_the_end() :: #{atom() => term()}.
%% `canal_lock:info/0', and: `differing', the number of keys that `canal_lock:audit/0' reports; `queued', the sum of
%% `canal_lock:waiting/1' of all apps; `at_work', the requests that dynos started and did not end; `apps', the Wait_ms
%% of each; `late_ms', how long after its deadline a wait may end; and `clients', whose last requests are not recorded.

-record(course, {
    host :: router:host(),
    %% Since the last scaling, before it, and when it was.
    max_per = 0 :: non_neg_integer(),
    capacity = 0 :: non_neg_integer(),
    capacity_before = none :: non_neg_integer() | none,
    from_ns = 0 :: integer(),
    %% Requests since the last scaling.
    begun = 0 :: non_neg_integer(),
    %% The requests in progress that count.
    open = #{} :: #{pid() => {Dyno :: router:address(), late | in_time}},
    killed = #{} :: #{pid() => killed},
    admitted = 0 :: non_neg_integer(),
    unanswered = 0 :: non_neg_integer(),
    %% Each as seen by its client.
    refused_ns = [] :: [non_neg_integer()],
    waits_ns = [] :: [non_neg_integer()],
    broken = #{} :: broken()
}).

%% A rule holds, or is broken: then its text is that of the format and the values. The format identifies the rule.
-type rule() :: {boolean(), Format :: string(), Values :: [term()]}.
-type broken() :: #{Format :: string() => {Times :: pos_integer(), First :: string()}}.

%% A request that starts later than this after a scaling must know of it. A connection to a dyno may take two seconds.
-define(LATE_NS, 3000000000).

-define(HEADER, "app  deadline  admitted   refused    waited  longest\n").
-define(ROW, "~-4ts ~5b ms ~9b ~9b ~9b ~5b ms~n").

%% Returns a summary for the user, and the broken promises; none if all were kept.
-spec judge([{At_ns :: integer(), router_demo_log:event()}], at_the_end()) ->
    {Summary :: iolist(), Broken :: [string()]}.
judge(Events, #{apps := Apps} = AtTheEnd) ->
    %% Of events at the same time, ends come before starts, because a start may have waited for an end.
    Sorted = lists:sort([{At_ns, order(Event), Event} || {At_ns, Event} <- Events]),
    Courses = [course(Host, Sorted, AtTheEnd) || Host <- lists:sort(maps:keys(Apps))],
    Broken = [Broken || #course{broken = Broken} <- Courses] ++ [check(end_rules(AtTheEnd, Courses), #{})],
    Texts = [text("~ts (~b times)", [First, Times]) || Rules <- Broken, {Times, First} <- maps:values(Rules)],
    {[?HEADER, [row(Course, Apps) || Course <- Courses], left(AtTheEnd)], Texts}.

order({scaled, _, _, _}) -> 1;
order({begins, _, _, _, _}) -> 3;
order(_) -> 2.

course(Host, Sorted, #{apps := Apps, late_ms := Late_ms}) ->
    Events = [{At_ns, Event} || {At_ns, _, Event} <- Sorted, element(2, Event) =:= Host],
    #course{broken = Broken} = Last = lists:foldl(fun step/2, #course{host = Host}, Events),
    Rules = phase_rules(Last) ++ wait_rules(Last, maps:get(Host, Apps), Late_ms),
    Last#course{broken = check(Rules, Broken)}.

step({At_ns, {scaled, _, MaxPer, Dynos}}, #course{capacity = Capacity, open = Open, broken = Broken} = Course) ->
    Course#course{
        max_per = MaxPer, capacity = MaxPer * Dynos, capacity_before = Capacity, from_ns = At_ns, begun = 0,
        %% From now on, late requests count as any other.
        open = maps:map(fun(_, {Dyno, _}) -> {Dyno, in_time} end, Open),
        broken = check(phase_rules(Course), Broken)
    };
step({_, {killed, _, Pid}}, #course{open = Open, killed = Killed} = Course) ->
    Course#course{open = maps:remove(Pid, Open), killed = Killed#{Pid => killed}};
step({_, {ends, _, Pid}}, #course{open = Open} = Course) ->
    Course#course{open = maps:remove(Pid, Open)};
step({_, {admitted, _, _, Waited_ns}}, #course{admitted = Admitted, waits_ns = Waits_ns} = Course) ->
    Course#course{admitted = Admitted + 1, waits_ns = Waited_ns ++ Waits_ns};
step({_, {refused, _, Took_ns, Waited_ns}}, #course{refused_ns = Refused_ns, waits_ns = Waits_ns} = Course) ->
    Course#course{refused_ns = [Took_ns | Refused_ns], waits_ns = Waited_ns ++ Waits_ns};
step({_, {unanswered, _}}, #course{unanswered = Unanswered} = Course) ->
    Course#course{unanswered = Unanswered + 1};
step({_, {begins, _, Pid, _, _}}, #course{killed = Killed} = Course) when is_map_key(Pid, Killed) ->
    Course;
step({At_ns, {begins, _, Pid, Dyno, Own}}, #course{capacity = Capacity, open = Others, begun = Begun} = Course) ->
    Kind = case Capacity of Own -> in_time; _ -> late end,
    Open = Others#{Pid => {Dyno, Kind}},
    Counted = [D || {D, K} <- maps:values(Open), Kind =:= late orelse K =:= in_time],
    OnOne = length([D || {D, _} <- maps:values(Open), D =:= Dyno]),
    Rules = start_rules(At_ns, Own, length(Counted), OnOne, Course),
    Course#course{open = Open, begun = Begun + 1, broken = check(Rules, Course#course.broken)}.

start_rules(At_ns, Own, Together, OnOne, Course) ->
    #course{host = Host, max_per = MaxPer, capacity = Capacity, capacity_before = Before, from_ns = From_ns} = Course,
    Most = max(Own, Capacity),
    IsLate = At_ns - From_ns =< ?LATE_NS andalso Before =:= Own,
    [
        {Together =< Most, "~ts: ~b requests together instead of ~b", [Host, Together, Most]},
        {OnOne =< MaxPer, "~ts: ~b requests on a dyno with a limit of ~b", [Host, OnOne, MaxPer]},
        {Own =:= Capacity orelse IsLate, "~ts: a request admitted with capacity ~b instead of ~b", [
            Host, Own, Capacity
        ]}
    ].

%% A time without requests proves nothing.
phase_rules(#course{host = Host, capacity = Capacity, begun = Begun}) ->
    [{Begun > 0 orelse Capacity =:= 0, "~ts: no request while its capacity was ~b", [Host, Capacity]}].

wait_rules(#course{host = Host, waits_ns = Waits_ns}, 0, _Late_ms) ->
    [{Waits_ns =:= [], "~ts: ~b requests waited, although it refuses at once", [Host, length(Waits_ns)]}];
wait_rules(#course{host = Host, waits_ns = Waits_ns, refused_ns = Refused_ns}, Wait_ms, Late_ms) ->
    Longest_ns = lists:max([0 | Waits_ns]),
    Early = length([Took_ns || Took_ns <- Refused_ns, Took_ns < 1000000 * Wait_ms]),
    [
        %% An app in which no request waits proves nothing.
        {Waits_ns =/= [], "~ts: no request waited", [Host]},
        {Longest_ns =< 1000000 * (Wait_ms + Late_ms), "~ts: a request waited for ~b ms instead of at most ~b", [
            Host, ceil(Longest_ns / 1.0e6), Wait_ms
        ]},
        {Early =:= 0, "~ts: ~b refused before their deadline of ~b ms", [Host, Early, Wait_ms]}
    ].

end_rules(#{granted := Granted, released := Released, released_by_death := ByDeath} = AtTheEnd, Courses) ->
    Zeros = [
        {permits, "~b permits left"},
        {holders, "~b holders left"},
        {waiting, "~b requests that still wait"},
        {queued, "~b requests in the queues of the apps"},
        {differing, "~b keys whose count differs from their holders"},
        {at_work, "~b requests that dynos did not end"},
        {not_held, "~b releases by non-holders"}
    ],
    Lost = Granted - Released - ByDeath,
    %% A request that is answered releases its two permits itself.
    Unanswered = lists:sum([maps:get(clients, AtTheEnd) | [Number || #course{unanswered = Number} <- Courses]]),
    [
        {Lost =:= 0, "~b permits granted that were neither released nor reclaimed after a death", [Lost]},
        {ByDeath =< 2 * Unanswered, "~b permits released by deaths, but at most ~b requests not answered", [
            ByDeath, Unanswered
        ]}
        | [{maps:get(Name, AtTheEnd) =:= 0, Format, [maps:get(Name, AtTheEnd)]} || {Name, Format} <- Zeros]
    ].

-spec check([rule()], broken()) -> broken().
check(Rules, Before) ->
    Add = fun({Format, Values}, Broken) ->
        Again = fun({Times, First}) -> {Times + 1, First} end,
        maps:update_with(Format, Again, {1, text(Format, Values)}, Broken)
    end,
    lists:foldl(Add, Before, [{Format, Values} || {false, Format, Values} <- Rules]).

row(#course{host = Host, admitted = Admitted, refused_ns = Refused_ns, waits_ns = Waits_ns}, Apps) ->
    Longest_ms = ceil(lists:max([0 | Waits_ns]) / 1.0e6),
    text(?ROW, [Host, maps:get(Host, Apps), Admitted, length(Refused_ns), length(Waits_ns), Longest_ms]).

left(#{permits := Permits, granted := Granted, released_by_death := ByDeath, waiting := Waiting}) ->
    text("~b permits granted (two per request), ~b released by deaths, ~b left; ~b requests still wait~n", [
        Granted, ByDeath, Permits, Waiting
    ]).

text(Format, Values) ->
    lists:flatten(io_lib:format(Format, Values)).
