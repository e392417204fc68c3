%% @private
%% Acquires and releases cluster permits. A call reads the lock of the session before it acquires from the share of this
%% node, and checks it after that. So a permit that is granted was counted in a session that was alive then (CP6).
%%
%% A call that finds a free permit calls no process and sends no message (CP2).
-module(canal_lock_cluster_calls).

-include("../canal_lock_errors.hrl").

-export([acquire/3, acquire/4, release/1, release/2, give/3]).

-type answer() :: {acquired, pos_integer()} | full | {error, no_quorum} | {raise, canal_lock_errors:cause()}.

%% How long a call without a timeout waits for the allocator.
-define(ANSWER_MS, 100).

%% How often a waiter checks the lock of its session. When that was lost, the permits that it waits for are void.
-define(CHECK_MS, 1000).

%% After the agent has died.
-define(AGENT_MS, 10).

%% Larger limits count as this.
-define(MAX_LIMIT, 16#ffffe).

%% A call that was not granted at once.
-record(call, {
    lock :: canal_lock_quorum:lock(),
    key :: canal_lock:key(),
    max_per :: non_neg_integer(),
    buckets :: non_neg_integer(),
    permits :: pos_integer(),
    since :: integer()
}).

%% One permit. Can wait for an answer of the allocator.
-spec acquire(canal_lock:key(), non_neg_integer(), non_neg_integer()) -> answer().
acquire(Key, MaxPer, Buckets) ->
    acquire(Key, MaxPer, Buckets, 1, ask).

-spec acquire(canal_lock:key(), non_neg_integer(), non_neg_integer(), canal_lock_wait:options() | invalid) -> answer().
acquire(_Key, _MaxPer, _Buckets, invalid) ->
    {raise, badarg};
acquire(Key, MaxPer, Buckets, Options = {_, Permits, _}) ->
    acquire(Key, MaxPer, Buckets, Permits, Options).

acquire(Key, MaxPer, Buckets, Permits, How) ->
    case canal_lock_cluster_agent:session() of
        none ->
            not_ready();
        Lock ->
            case attempt(Key, MaxPer, Buckets, Permits) of
                {acquired, _} = Acquired ->
                    check(Lock, Key, Permits, Acquired);
                {raise, _} = Raise ->
                    Raise;
                Refusal ->
                    not_at_once(Refusal, How, #call{
                        lock = Lock,
                        key = Key,
                        max_per = MaxPer,
                        buckets = Buckets,
                        permits = Permits,
                        since = os:perf_counter()
                    })
            end
    end.

-compile({inline, [acquire/5, attempt/4]}).
attempt(Key, MaxPer, Buckets, Permits) ->
    case canal_lock_nif:acquire_shared(Key, MaxPer, Buckets, Permits) of
        {raise, Cause, Arguments} -> canal_lock_interned:retry(Cause, fun canal_lock_nif:acquire_shared/4, Arguments);
        Answer -> Answer
    end.

%% This node has no lock yet, or no allocator has asked for its keys. Without a table there is no session either.
not_ready() ->
    case whereis(canal_lock_cluster) =:= undefined orelse canal_lock_cluster_table:serial() =:= closed of
        true -> {raise, not_started};
        false -> no_quorum()
    end.

no_quorum() ->
    ok = canal_lock_cluster_totals:add(no_quorum, 1),
    {error, no_quorum}.

%% The agent publishes that a session ends before it looks for holders. So it finds a holder that reads its own session
%% after the permit is on its record.
check(Lock, Key, Permits, Acquired) ->
    case canal_lock_cluster_agent:session() =:= Lock andalso canal_lock_quorum_lock:is_held(Lock) of
        true ->
            Acquired;
        _ ->
            _ = release(Key, Permits),
            no_quorum()
    end.

not_at_once(Refusal, ask, Call) ->
    case is_known(Refusal, Call) of
        true -> refused(Call);
        false -> ask(now_ms() + ?ANSWER_MS, Call)
    end;
not_at_once(Refusal, {Timeout_ms, _, MaxWaiting}, Call) ->
    case Timeout_ms > 0 andalso is_satisfiable(Call) of
        true -> wait(Refusal, until(Timeout_ms), MaxWaiting, Call);
        false -> refused_at_once(Refusal, Call)
    end.

%% Whether an answer of the allocator would change nothing.
is_known(full, Call) -> not is_satisfiable(Call) orelse canal_lock_cluster_agent:stands(Call#call.key);
is_known(declare, _) -> false.

is_satisfiable(#call{permits = Permits} = Call) -> Permits =< capacity(Call).

capacity(#call{max_per = MaxPer, buckets = Buckets}) ->
    min(min(MaxPer, ?MAX_LIMIT) * min(Buckets, ?MAX_LIMIT), ?MAX_LIMIT).

is_valid(#call{lock = Lock}) ->
    canal_lock_quorum_lock:is_held(Lock) =:= true.

refused(Call) ->
    case is_valid(Call) of
        true ->
            ok = canal_lock_cluster_totals:add(refused, 1),
            full;
        false ->
            no_quorum()
    end.

refused_at_once(Refusal, Call = #call{key = Key}) ->
    _ = [ok = canal_lock_cluster_agent:notify(Key, capacity(Call), wanted(Call)) || not is_known(Refusal, Call)],
    refused(Call).

%% More permits than the capacity are never granted, and must not be collected.
wanted(Call = #call{permits = Permits}) ->
    case is_satisfiable(Call) of
        true -> Permits;
        false -> 0
    end.

%% Until the allocator has answered that there is nothing to give, or does not answer in time.
ask(Until_ms, Call = #call{key = Key, permits = Permits}) ->
    Left_ms = Until_ms - now_ms(),
    case Left_ms > 0 andalso canal_lock_cluster_agent:ask(Key, capacity(Call), wanted(Call), Left_ms) of
        ok ->
            case attempt(Key, Call#call.max_per, Call#call.buckets, Permits) of
                {acquired, _} = Acquired ->
                    granted(Acquired, Call);
                {raise, _} = Raise ->
                    Raise;
                Refusal ->
                    case is_known(Refusal, Call) orelse not is_valid(Call) of
                        true -> refused(Call);
                        false -> ask(Until_ms, Call)
                    end
            end;
        _ ->
            refused(Call)
    end.

granted(Acquired, #call{lock = Lock, key = Key, permits = Permits, since = Since}) ->
    case check(Lock, Key, Permits, Acquired) of
        Acquired ->
            ok = canal_lock_cluster_totals:granted(Since),
            Acquired;
        Error ->
            Error
    end.

%% The agent must know the capacity before a request can wait.
wait(declare, Until_ms, MaxWaiting, Call = #call{key = Key, permits = Permits}) ->
    case is_valid(Call) andalso min(left_ms(Until_ms), ?ANSWER_MS) of
        Left_ms when is_integer(Left_ms), Left_ms > 0 ->
            case canal_lock_cluster_agent:ask(Key, capacity(Call), Permits, Left_ms) of
                ok ->
                    wait(full, Until_ms, MaxWaiting, Call);
                ended ->
                    receive
                    after ?AGENT_MS -> wait(declare, Until_ms, MaxWaiting, Call)
                    end
            end;
        _ ->
            refused(Call)
    end;
wait(full, Until_ms, MaxWaiting, Call = #call{key = Key, max_per = MaxPer, buckets = Buckets, permits = Permits}) ->
    Ref = make_ref(),
    Wait = fun(K) -> canal_lock_nif:wait(shared, K, MaxPer, Buckets, Permits, MaxWaiting, Ref) end,
    case ?CAUGHT(canal_lock_interned:call(Key, Wait)) of
        waiting ->
            ok = canal_lock_cluster_agent:notify(Key, capacity(Call), 0),
            await(Ref, Until_ms, Call);
        {acquired, _} = Acquired ->
            granted(Acquired, Call);
        declare ->
            wait(declare, Until_ms, MaxWaiting, Call);
        full ->
            refused(Call);
        {raise, _} = Raise ->
            Raise
    end.

await(Ref, Until_ms, Call) ->
    Left_ms = left_ms(Until_ms),
    receive
        {canal_lock, Ref, Answer} -> ended(canal_lock_wait:answer(Answer), Call)
    after min(Left_ms, ?CHECK_MS) ->
        case Left_ms > ?CHECK_MS andalso is_valid(Call) of
            true -> await(Ref, Until_ms, Call);
            false -> ended(canal_lock_wait:cancel_after_timeout(Ref), Call)
        end
    end.

ended({acquired, _} = Acquired, Call) -> granted(Acquired, Call);
ended(full, Call) -> refused(Call);
ended(Raise, _) -> Raise.

%% One permit.
-spec release(canal_lock:key()) -> ok | {error, not_held} | {raise, canal_lock_errors:cause()}.
release(Key) ->
    case canal_lock_nif:release_shared(Key) of
        {raise, Cause, Arguments} -> canal_lock_interned:retry(Cause, fun canal_lock_nif:release_shared/1, Arguments);
        Answer -> Answer
    end.

-spec release(canal_lock:key(), pos_integer() | invalid) -> ok | {error, not_held} | {raise, canal_lock_errors:cause()}.
release(Key, Permits) ->
    ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:release_many(shared, K, Permits) end)).

-spec give(canal_lock:key(), pid(), pos_integer() | invalid) ->
    ok | {error, not_held | not_alive} | {raise, canal_lock_errors:cause()}.
give(Key, Pid, Permits) ->
    Session = canal_lock_cluster_agent:session(),
    Given = ?CAUGHT(canal_lock_interned:call(Key, fun(K) -> canal_lock_nif:give(shared, K, Pid, Permits) end)),
    %% If the session ends during this call, the agent may read the holders before the gift.
    IsLost = Session =:= none orelse canal_lock_cluster_agent:session() =/= Session,
    _ = [Pid ! {canal_lock_cluster, lost, Key} || Given =:= ok, IsLost],
    Given.

now_ms() ->
    erlang:monotonic_time(millisecond).

until(infinity) -> infinity;
until(Timeout_ms) -> now_ms() + Timeout_ms.

left_ms(infinity) -> infinity;
left_ms(Until_ms) -> max(0, Until_ms - now_ms()).
