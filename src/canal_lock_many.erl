%% @private
%% Permits of several keys, all or none.
%%
%% The keys are acquired one after the other in one order, the same for all callers. So two callers never wait for each
%% other: the one that holds the later key does not wait for an earlier one.
-module(canal_lock_many).

-include("canal_lock_errors.hrl").

-export([acquire/2, release/1, is_limits/1]).

-export_type([limit/0]).

%% A key with its limit, or with its `MaxPer' and number of buckets.
-type limit() :: {canal_lock:key(), non_neg_integer()} | {canal_lock:key(), non_neg_integer(), non_neg_integer()}.

-define(IS_COUNT(N), (is_integer(N) andalso N >= 0)).
-define(IS_LIMIT(Limit),
    (tuple_size(Limit) =:= 2 andalso ?IS_COUNT(element(2, Limit)) orelse
        tuple_size(Limit) =:= 3 andalso ?IS_COUNT(element(2, Limit)) andalso ?IS_COUNT(element(3, Limit)))
).

%% The numbers of permits in use are in the order of the argument.
-spec acquire([limit()], timeout() | canal_lock:many_options()) ->
    {acquired, [pos_integer()]} | full | {raise, canal_lock_errors:cause()}.
acquire(Limits, TimeoutOrOptions) ->
    case is_limits(Limits) andalso canal_lock_wait:many_options(TimeoutOrOptions) of
        {Timeout_ms, 1, MaxWaiting} ->
            Numbered = lists:zip(Limits, lists:seq(1, length(Limits))),
            acquire(lists:sort(fun in_order/2, Numbered), {deadline(Timeout_ms), MaxWaiting}, []);
        _ ->
            {raise, badarg}
    end.

acquire([], _Wait, Acquired) ->
    {acquired, [N || {_, N, _} <- lists:sort(Acquired)]};
acquire([{Limit, Number} | Others], Wait = {Deadline, MaxWaiting}, Acquired) ->
    {Key, MaxPer, Buckets} = full_form(Limit),
    Options = {left(Deadline), 1, MaxWaiting},
    Acquire = fun(KeyOrHandle) -> canal_lock_wait:acquire(KeyOrHandle, MaxPer, Buckets, Options) end,
    case ?CAUGHT(canal_lock_interned:call(Key, Acquire)) of
        {acquired, N} ->
            acquire(Others, Wait, [{Number, N, Limit} | Acquired]);
        Other ->
            ok = release([Held || {_, _, Held} <- Acquired]),
            Other
    end.

%% Releases one permit of each key.
-spec release([limit()]) -> ok.
release(Limits) ->
    lists:foreach(fun(Limit) -> canal_lock_interned:release(element(1, Limit), 1) end, Limits).

%% Whether the argument is a list of limits, in which no key occurs twice.
-spec is_limits(term()) -> boolean().
is_limits(Limits) -> is_limits(Limits, #{}).

is_limits([], _Seen) ->
    true;
is_limits([Limit | Others], Seen) when ?IS_LIMIT(Limit), not is_map_key(element(1, Limit), Seen) ->
    is_limits(Others, Seen#{element(1, Limit) => seen});
is_limits(_, _Seen) ->
    false.

full_form({Key, Limit}) -> {Key, Limit, 1};
full_form(Limit) -> Limit.

%% Keys such as 1 and 1.0 are equal in the order of terms and different as keys. Their order must not depend on the
%% caller's list.
in_order({One, _}, {Other, _}) ->
    {A, B} = {element(1, One), element(1, Other)},
    A < B orelse A == B andalso term_to_binary(A) =< term_to_binary(B).

deadline(infinity) -> infinity;
deadline(Timeout_ms) -> erlang:monotonic_time(millisecond) + Timeout_ms.

left(infinity) -> infinity;
left(Deadline) -> max(0, Deadline - erlang:monotonic_time(millisecond)).
