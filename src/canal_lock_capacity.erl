%% @private
%% Calls whose capacity is a function. The caller's process evaluates it before the attempt, and once more after its
%% request has joined the queue. If the capacities differ, the request leaves the queue, and the call begins again with
%% the second one. So a process that stores a new capacity and then calls `resize' reaches the request: either the
%% request has joined the queue before, or its last evaluation comes after the store. An evaluation that is late changes
%% no other request.
-module(canal_lock_capacity).

-include("canal_lock_errors.hrl").

-export([acquire/2, request/2]).

-define(IS_COUNT(N), (is_integer(N) andalso N >= 0)).

%% About this many characters of a wrong answer are shown.
-define(MAX_CHARACTERS, 100).

-type answer() :: {acquired, pos_integer()} | full | {raise, canal_lock_errors:cause()}.

%% Errors of the function are not caught: they are the caller's.
-spec acquire(canal_lock:key(), Options :: map()) -> answer().
acquire(Key, Options) ->
    case canal_lock_wait:capacity_options(Options) of
        {Capacity, Parsed = {0, _, _}} ->
            attempt(Key, fun canal_lock_wait:acquire/4, evaluate(Capacity), Parsed);
        {Capacity, Parsed = {Timeout_ms, _, _}} ->
            case request(Key, Capacity, Parsed) of
                {waiting, Ref} -> ?CAUGHT(canal_lock_wait:await(Ref, Timeout_ms));
                Answer -> Answer
            end;
        invalid ->
            {raise, badarg}
    end.

-spec request(canal_lock:key(), Options :: map()) -> answer() | {waiting, reference()}.
request(_Key, #{timeout_ms := _}) ->
    {raise, badarg};
request(Key, Options) ->
    case canal_lock_wait:capacity_options(Options) of
        {Capacity, Parsed} -> request(Key, Capacity, Parsed);
        invalid -> {raise, badarg}
    end.

request(Key, Capacity, Parsed) ->
    request(Key, Capacity, evaluate(Capacity), Parsed).

request(Key, Capacity, Current, Parsed = {_, Permits, _}) ->
    case attempt(Key, fun canal_lock_wait:request/4, Current, Parsed) of
        {waiting, Ref} ->
            try evaluate(Capacity) of
                Current -> {waiting, Ref};
                Next -> begin_again(cancel(Ref), Key, Capacity, Next, Parsed)
            catch
                Class:Reason:Stacktrace ->
                    give_up(cancel(Ref), Key, Permits),
                    erlang:raise(Class, Reason, Stacktrace)
            end;
        Answer ->
            Answer
    end.

cancel(Ref) ->
    ?CAUGHT(canal_lock_wait:cancel(Ref)).

begin_again(Cancelled, Key, _Capacity, {raise, Cause}, {_, Permits, _}) ->
    give_up(Cancelled, Key, Permits),
    {raise, Cause};
begin_again({acquired, N}, _Key, _Capacity, _Next, _Parsed) ->
    {acquired, N};
begin_again({raise, Cause}, _Key, _Capacity, _Next, _Parsed) ->
    {raise, Cause};
begin_again(_Cancelled, Key, Capacity, Next, Parsed) ->
    request(Key, Capacity, Next, Parsed).

%% The request may have been granted in the meantime.
give_up({acquired, _}, Key, Permits) -> canal_lock_interned:release(Key, Permits);
give_up(_Cancelled, _Key, _Permits) -> ok.

evaluate(Capacity) ->
    case Capacity() of
        {MaxPer, Buckets} when ?IS_COUNT(MaxPer), ?IS_COUNT(Buckets) ->
            {MaxPer, Buckets};
        Other ->
            Must = "the function of the option capacity must return {MaxPer, Buckets}, two non-negative integers; ",
            Text = [Must, "it returned ", canal_lock_text:short(Other, ?MAX_CHARACTERS)],
            {raise, {badarg, #{2 => unicode:characters_to_binary(Text)}}}
    end.

attempt(_Key, _Call, {raise, Cause}, _Parsed) ->
    {raise, Cause};
attempt(Key, Call, {MaxPer, Buckets}, Parsed) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(KeyOrHandle) -> Call(KeyOrHandle, MaxPer, Buckets, Parsed) end)).
