%% Whether the promises of the cluster permits were kept: judges what the back-end has recorded. It counts a request
%% until it ends. So the requests of a killed node count until its connections end, which is at once; and those of a
%% node that is cut off count until the node cancels them. There is no other exception: at no time may more requests
%% than the limit be at work.
-module(cluster_permits_verdict).

-export([judge/2, lines/1]).

-export_type([terms/0, verdict/0]).

%% `promised_ms': within this time after a fault, the other nodes must use all permits. `missing': what the demo awaited
%% without success.
-type terms() :: #{limit := pos_integer(), promised_ms := pos_integer(), missing := [string()]}.

%% `most': how many requests were at work at the same time, at most. `recoveries': the faults, and after which time the
%% other nodes used all permits. `broken': sentences for people.
-type verdict() :: #{
    limit := pos_integer(),
    most := non_neg_integer(),
    served := #{Node :: atom() => non_neg_integer()},
    lost := non_neg_integer(),
    disconnected := non_neg_integer(),
    recoveries := [{Fault :: string(), Ms :: non_neg_integer() | never}],
    broken := [string()]
}.

-spec judge([cluster_permits_backend:event()], terms()) -> verdict().
judge(Events, #{limit := Limit, promised_ms := Promised_ms, missing := Missing}) ->
    Times = at_work(Events),
    Ends = [{Node, How} || {_, {ended, Node, How}} <- Events],
    Count = fun(Wanted) -> length([How || {_, How} <- Ends, How =:= Wanted]) end,
    Verdict = #{
        limit => Limit,
        most => lists:max([0 | [total(AtWork) || {_, AtWork} <- Times]]),
        served => maps:map(fun(_, Of) -> length(Of) end, maps:groups_from_list(fun({Node, _}) -> Node end, [
            End || {_, served} = End <- Ends
        ])),
        lost => Count(lost),
        disconnected => Count(disconnected),
        recoveries => [
            {Text, recovery(At_ms, Node, Limit, Times)} || {At_ms, {fault, Text, Node}} <- Events
        ]
    },
    Verdict#{
        broken => [
            lists:flatten(Sentence)
         || Sentence <- over_limit(Verdict) ++ late(Promised_ms, Verdict) ++ not_tested(Verdict) ++
                [["awaited without success: ", What] || What <- Missing]
        ]
    }.

%% The requests at work of each node after each event.
at_work(Events) ->
    {Times, _} = lists:mapfoldl(
        fun({At_ms, Event}, AtWork) ->
            Next = change(Event, AtWork),
            {{At_ms, Next}, Next}
        end,
        #{},
        Events
    ),
    Times.

change({began, Node}, AtWork) -> AtWork#{Node => maps:get(Node, AtWork, 0) + 1};
change({ended, Node, _}, AtWork) -> AtWork#{Node := maps:get(Node, AtWork) - 1};
change(_, AtWork) -> AtWork.

total(AtWork) ->
    lists:sum(maps:values(AtWork)).

recovery(Fault_ms, Node, Limit, Times) ->
    After = [At_ms || {At_ms, AtWork} <- Times, At_ms >= Fault_ms, total(maps:remove(Node, AtWork)) >= Limit],
    case After of
        [At_ms | _] -> At_ms - Fault_ms;
        [] -> never
    end.

%%% Promises. Each function returns a sentence for each violation.

over_limit(#{most := Most, limit := Limit}) ->
    [io_lib:format("~b requests were at work at once, and the limit is ~b", [Most, Limit]) || Most > Limit].

late(Promised_ms, #{recoveries := Recoveries}) ->
    [
        io_lib:format("~ts: the other nodes used all permits after ~w ms, and ~b ms are promised", [
            Text, Ms, Promised_ms
        ])
     %% An integer is less than `never'.
     || {Text, Ms} <- Recoveries, Ms > Promised_ms
    ].

%% A promise that the demo did not test was not kept either.
not_tested(#{lost := Lost, disconnected := Disconnected, recoveries := Recoveries, served := Served}) ->
    [
        Sentence
     || {true, Sentence} <- [
            {Lost =:= 0, "no request ended because its permit was lost"},
            {Disconnected =:= 0, "no request was at work on a node that was killed"},
            {Recoveries =:= [], "there was no fault"},
            {map_size(Served) < 2, "only one node was served"}
        ]
    ].

%% The verdict as text.
-spec lines(verdict()) -> [iolist()].
lines(#{limit := Limit, most := Most, served := Served, recoveries := Recoveries, broken := Broken} = Verdict) ->
    [
        io_lib:format("requests served: ~b (~ts)", [
            lists:sum(maps:values(Served)),
            lists:join(", ", [
                io_lib:format("~ts: ~b", [Node, Count])
             || {Node, Count} <- lists:sort(maps:to_list(Served))
            ])
        ]),
        io_lib:format("requests that ended with a killed node: ~b; because their permit was lost: ~b", [
            maps:get(disconnected, Verdict), maps:get(lost, Verdict)
        ]),
        io_lib:format("at work at once: at most ~b, and the limit is ~b", [Most, Limit])
    ] ++
        [io_lib:format("~ts: the others used all permits after ~w ms", [Text, Ms]) || {Text, Ms} <- Recoveries] ++
        case Broken of
            [] -> ["", "All promises were kept."];
            _ -> ["" | [["BROKEN  ", Promise] || Promise <- Broken]]
        end.
