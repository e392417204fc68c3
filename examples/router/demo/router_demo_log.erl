%% Records what dynos, clients and the demo itself see, each event with its time (VM monotonic time in nanoseconds).
-module(router_demo_log).

-export([new/0, note/2, count/3, at_work/2, events/1]).

-export_type([log/0, event/0]).

-opaque log() :: {Events :: ets:table(), Counts :: ets:table()}.

-type event() ::
    %% Before router:put/4.
    {scaled, router:host(), MaxPer :: non_neg_integer(), Dynos :: non_neg_integer()}
    %% Before the process of a request is killed.
    | {killed, router:host(), pid()}
    %% On a dyno. Capacity: of the app when the request was admitted, as sent by the router.
    | {begins, router:host(), pid(), Dyno :: router:address(), Capacity :: non_neg_integer()}
    %% Before any other process can see it.
    | {ends, router:host(), pid()}
    %% A client has its answer. refused: the app was at its capacity. Took_ns: as seen by the client. Waited_ns: in the
    %% queue, as reported by the router; one time, or none if the request did not wait.
    | {admitted | refused, router:host(), Took_ns :: non_neg_integer(), Waited_ns :: [non_neg_integer()]}
    %% A client has left before that, or the process of its request was killed.
    | {unanswered, router:host()}.

-spec new() -> log().
new() ->
    Options = [public, {write_concurrency, true}],
    {ets:new(events, Options), ets:new(counts, Options)}.

-spec note(log(), event()) -> ok.
note({Events, Counts}, Event) ->
    Name = {element(1, Event), element(2, Event)},
    _ = ets:update_counter(Counts, Name, 1, {Name, 0}),
    true = ets:insert(Events, {{erlang:monotonic_time(nanosecond), erlang:unique_integer()}, Event}),
    ok.

%% The number of these events.
-spec count(log(), Kind :: atom(), router:host()) -> non_neg_integer().
count({_Events, Counts}, Kind, Host) ->
    case ets:lookup(Counts, {Kind, Host}) of
        [{_, Count}] -> Count;
        [] -> 0
    end.

%% The requests in progress on the app's dynos.
-spec at_work(log(), router:host()) -> integer().
at_work(Log, Host) ->
    count(Log, begins, Host) - count(Log, ends, Host).

%% In no order.
-spec events(log()) -> [{At_ns :: integer(), event()}].
events({Events, _Counts}) ->
    [{At_ns, Event} || {{At_ns, _}, Event} <- ets:tab2list(Events)].
