%% @private
%% Acquires permits with options, and waits for them. No function here is on the path of `canal_lock:acquire/3'.
%%
%% A request that waits ends in the native library, under the lock of its queue. If it is granted, or if the table
%% closes, the message to the process is sent under that lock. So when `cancel' finds that the request does not wait any
%% more, the message is in the mailbox, or the process has received it.
-module(canal_lock_wait).

-include("canal_lock_errors.hrl").

-export([options/1, request_options/1, many_options/1, capacity_options/1, permits/1]).
-export([acquire/4, wait/4, await/2, request/4, answer/1, cancel/1, cancel_after_timeout/1]).
-export([resize/3, exit_after_resize/3]).

-export_type([options/0]).

%% All options. A tuple, because it is made for each call.
-type options() :: {Timeout_ms :: timeout(), Permits :: pos_integer(), MaxWaiting :: non_neg_integer()}.

-type answer() :: {acquired, pos_integer()} | full | {raise, canal_lock_errors:cause()}.

%% More processes than any VM has.
-define(NO_LIMIT, (1 bsl 60)).

%% Requests that one native call grants, also if each has another capacity. The call makes 320 steps
%% (`STEPS_PER_PIECE' in waits.rs of the native library). A grant takes one step, and one more for each 16 capacities
%% that it compares.
-define(GRANTED_AT_ONCE, 80).

%% From the argument of a public function. `invalid' if it is wrong; canal_lock_errors explains why. It explains after
%% the call, because that takes longer than the rest of the call.
-spec options(term()) -> options() | invalid.
options(Options) when is_map(Options) ->
    {One, Timeout_ms} = case Options of #{timeout_ms := Given1} -> {1, Given1}; #{} -> {0, 0} end,
    {Two, Permits} = case Options of #{permits := Given2} -> {1, Given2}; #{} -> {0, 1} end,
    {Three, MaxWaiting} = case Options of #{max_waiting := Given3} -> {1, Given3}; #{} -> {0, infinity} end,
    if
        One + Two + Three < map_size(Options) -> invalid;
        not ?IS_TIMEOUT(Timeout_ms) -> invalid;
        not (is_integer(Permits) andalso Permits > 0) -> invalid;
        MaxWaiting =:= infinity -> {Timeout_ms, Permits, ?NO_LIMIT};
        is_integer(MaxWaiting), MaxWaiting >= 0 -> {Timeout_ms, Permits, MaxWaiting};
        true -> invalid
    end;
options(Timeout_ms) when ?IS_TIMEOUT(Timeout_ms) ->
    {Timeout_ms, 1, ?NO_LIMIT};
options(_) ->
    invalid.

%% A request has no timeout.
-spec request_options(term()) -> options() | invalid.
request_options(Options) when is_map(Options), not is_map_key(timeout_ms, Options) -> options(Options);
request_options(_) -> invalid.

%% Of a call for several keys, with one permit of each.
-spec many_options(term()) -> options() | invalid.
many_options(Options) when is_map_key(permits, Options) -> invalid;
many_options(TimeoutOrOptions) -> options(TimeoutOrOptions).

%% Of a call with the option `capacity', which is a function.
-spec capacity_options(term()) -> {fun(() -> term()), options()} | invalid.
capacity_options(#{capacity := Capacity} = Options) when is_function(Capacity, 0) ->
    case options(maps:remove(capacity, Options)) of
        invalid -> invalid;
        Others -> {Capacity, Others}
    end;
capacity_options(_) ->
    invalid.

%% The number of permits in the options of a release or a gift.
-spec permits(term()) -> pos_integer() | invalid.
permits(#{permits := Permits} = Options) when map_size(Options) =:= 1, is_integer(Permits), Permits > 0 -> Permits;
permits(Options) when Options =:= #{} -> 1;
permits(_) -> invalid.

-spec acquire(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) -> answer().
acquire(Key, MaxPer, Buckets, Options = {_, Permits, _}) ->
    case attempt(Key, MaxPer, Buckets, Permits) of
        full -> wait(Key, MaxPer, Buckets, Options);
        Answer -> Answer
    end.

%% One permit by the faster native function, which returns its causes. `full' is not counted.
-compile({inline, attempt/4}).
attempt(Key, MaxPer, Buckets, 1) ->
    case canal_lock_nif:acquire(Key, MaxPer, Buckets, none) of
        {raise, full, _} -> full;
        {raise, Cause, _} -> error(Cause);
        Answer -> Answer
    end;
attempt(Key, MaxPer, Buckets, Permits) ->
    canal_lock_nif:acquire_many(Key, MaxPer, Buckets, Permits).

%% After an attempt that was answered `full'.
%%
%% The reference is made in the function that receives the message. So the VM does not search the messages that arrived
%% before.
-spec wait(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) -> answer().
wait(_Key, _MaxPer, _Buckets, {0, _, _}) ->
    ok = canal_lock_nif:count_refusal(),
    full;
wait(Key, MaxPer, Buckets, {Timeout_ms, Permits, MaxWaiting}) ->
    Ref = make_ref(),
    case canal_lock_nif:wait(local, Key, MaxPer, Buckets, Permits, MaxWaiting, Ref) of
        waiting ->
            receive
                {canal_lock, Ref, Answer} -> answer(Answer)
            after Timeout_ms -> cancel_after_timeout(Ref)
            end;
        Answer ->
            Answer
    end.

%% Waits for the end of a request of the caller.
-spec await(reference(), timeout()) -> answer().
await(Ref, Timeout_ms) ->
    receive
        {canal_lock, Ref, Answer} -> answer(Answer)
    after Timeout_ms -> cancel_after_timeout(Ref)
    end.

%% What the message of a request that has ended means for the call that waits.
-spec answer(closed | {acquired, pos_integer()}) -> answer().
answer(closed) -> {raise, not_started};
answer(Answer) -> Answer.

-spec request(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) ->
    answer() | {waiting, reference()}.
request(Key, MaxPer, Buckets, {_, Permits, MaxWaiting}) ->
    case attempt(Key, MaxPer, Buckets, Permits) of
        full ->
            Ref = make_ref(),
            case canal_lock_nif:wait(local, Key, MaxPer, Buckets, Permits, MaxWaiting, Ref) of
                waiting -> {waiting, Ref};
                Answer -> Answer
            end;
        Answer ->
            Answer
    end.

-spec cancel(reference()) -> ok | {acquired, pos_integer()} | {error, not_waiting}.
cancel(Ref) when is_reference(Ref), node(Ref) =/= node() ->
    %% The native library compares the identifier of a reference, not its node.
    {error, not_waiting};
cancel(Ref) ->
    case canal_lock_nif:cancel(Ref, false) of
        ok ->
            ok;
        not_waiting ->
            receive
                {canal_lock, Ref, closed} -> ok;
                {canal_lock, Ref, Answer} -> Answer
            after 0 -> {error, not_waiting}
            end
    end.

%% If the request was granted before, its permits are the answer.
-spec cancel_after_timeout(reference()) -> answer().
cancel_after_timeout(Ref) ->
    case cancel_timed_out(Ref) of
        ok ->
            full;
        not_waiting ->
            receive
                {canal_lock, Ref, Answer} -> answer(Answer)
            after 0 -> {raise, nif_panicked}
            end
    end.

%% A panic leaves the request in its queue. It must not stay there, because the caller forgets it.
cancel_timed_out(Ref) ->
    try
        canal_lock_nif:cancel(Ref, true)
    catch
        error:nif_panicked -> canal_lock_nif:cancel(Ref, true)
    end.

%% If many requests wait, another process grants them, in pieces, so that other processes run in between. It goes on if
%% the caller is killed.
-spec resize(canal_lock_nif:key(), non_neg_integer(), non_neg_integer()) -> ok | {raise, canal_lock_errors:cause()}.
resize(Key, MaxPer, Buckets) ->
    case canal_lock_nif:resize(Key, MaxPer, Buckets, ?GRANTED_AT_ONCE) of
        done ->
            ok;
        many ->
            {_, Monitor} = spawn_monitor(?MODULE, exit_after_resize, [Key, MaxPer, Buckets]),
            receive {'DOWN', Monitor, process, _, Answer} -> Answer end
    end.

%% The main function of that process. Its exit reason is the answer.
-spec exit_after_resize(canal_lock_nif:key(), non_neg_integer(), non_neg_integer()) -> no_return().
exit_after_resize(Key, MaxPer, Buckets) ->
    exit(?CAUGHT(settle(canal_lock_nif:resize(Key, MaxPer, Buckets, ?NO_LIMIT), Key))).

settle(done, _Key) -> ok;
settle(more, Key) -> settle(canal_lock_nif:settle(local, Key), Key).
