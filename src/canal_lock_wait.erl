%% @private
%% Acquires permits with options, and waits for them. No function here is on the path of `canal_lock:acquire/3'.
%%
%% A request that waits ends in the native library, under the lock of its queue. If it is granted, or if the table
%% closes, the message to the process is sent under that lock. So when `cancel' finds that the request does not wait any
%% more, the message is in the mailbox, or the process has received it.
-module(canal_lock_wait).

-include("canal_lock_errors.hrl").

-export([options/1, acquire/4, wait/4, request/4, cancel/1, cancel_after_timeout/1, resized/3]).

-export_type([options/0]).

%% All options, with their values.
-type options() :: #{
    timeout_ms := timeout(),
    permits := pos_integer(),
    max_waiting := non_neg_integer()
}.

-type answer() :: {acquired, pos_integer()} | full | {raise, canal_lock_errors:cause()}.

%% More processes than any VM has.
-define(NO_LIMIT, (1 bsl 60)).

%% From the argument of a public function, which has been checked.
-spec options(timeout() | canal_lock:wait_options()) -> options().
options(Options) when is_map(Options) ->
    case maps:merge(#{timeout_ms => 0, permits => 1, max_waiting => infinity}, Options) of
        All = #{max_waiting := infinity} -> All#{max_waiting := ?NO_LIMIT};
        All -> All
    end;
options(Timeout_ms) ->
    options(#{timeout_ms => Timeout_ms}).

-spec acquire(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) -> answer().
acquire(Key, MaxPer, Buckets, Options = #{permits := Permits}) ->
    case canal_lock_nif:acquire_many(Key, MaxPer, Buckets, Permits) of
        full -> wait(Key, MaxPer, Buckets, Options);
        Answer -> Answer
    end.

%% The reference is made in the function that receives the message. So the VM does not search the messages that arrived
%% before. (A test looks for the instructions that the compiler emits for this.)
-spec wait(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) -> answer().
wait(_Key, _MaxPer, _Buckets, #{timeout_ms := 0}) ->
    full;
wait(Key, MaxPer, Buckets, #{timeout_ms := Timeout_ms, permits := Permits, max_waiting := MaxWaiting}) ->
    Ref = make_ref(),
    case canal_lock_nif:wait(Key, MaxPer, Buckets, Permits, MaxWaiting, Ref) of
        waiting ->
            receive
                {canal_lock, Ref, Answer} -> answer(Answer)
            after Timeout_ms -> cancel_after_timeout(Ref)
            end;
        Answer ->
            Answer
    end.

answer(closed) -> {raise, not_started};
answer(Answer) -> Answer.

-spec request(canal_lock_nif:key(), non_neg_integer(), non_neg_integer(), options()) ->
    answer() | {waiting, reference()}.
request(Key, MaxPer, Buckets, #{permits := Permits, max_waiting := MaxWaiting}) ->
    case canal_lock_nif:acquire_many(Key, MaxPer, Buckets, Permits) of
        full ->
            Ref = make_ref(),
            case canal_lock_nif:wait(Key, MaxPer, Buckets, Permits, MaxWaiting, Ref) of
                waiting -> {waiting, Ref};
                Answer -> Answer
            end;
        Answer ->
            Answer
    end.

-spec cancel(reference()) -> ok | {acquired, pos_integer()} | {error, not_waiting}.
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

%% In pieces, so that other processes run in between.
-spec resized(canal_lock_nif:key(), non_neg_integer(), non_neg_integer()) -> ok.
resized(Key, MaxPer, Buckets) ->
    resized(Key, MaxPer, Buckets, 0).

resized(Key, MaxPer, Buckets, Before) ->
    case canal_lock_nif:resized(Key, MaxPer, Buckets, Before) of
        done -> ok;
        Next -> resized(Key, MaxPer, Buckets, Next)
    end.
