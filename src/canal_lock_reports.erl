%% @private
%% What the logger is told, in the domain `[canal_lock]'.
-module(canal_lock_reports).

-include_lib("kernel/include/logger.hrl").

-export([open/0, unexpected_unlock/1, report/1, format/1]).

%% A process that releases what it does not hold may do so a million times a second. One report in so long tells the
%% same; it says how many were left out.
-define(INTERVAL_MS, 1000).

%% So many holders are named in a report.
-define(NAMED, 10).

%% About so many are shown of a key or a message.
-define(MAX_CHARACTERS, 200).

%% The places in the array of the limiter.
-define(LAST_MS, 1).
-define(LEFT_OUT, 2).

%% Makes the limiter, if there is none yet. It outlives the manager, as a kept table does.
-spec open() -> ok.
open() ->
    case persistent_term:get(?MODULE, none) of
        none ->
            Limiter = atomics:new(2, [{signed, true}]),
            ok = atomics:put(Limiter, ?LAST_MS, now_ms() - ?INTERVAL_MS),
            persistent_term:put(?MODULE, Limiter);
        _ ->
            ok
    end.

%% The calling process has released a key that it does not hold.
-spec unexpected_unlock(canal_lock:key()) -> ok.
unexpected_unlock(Key) ->
    case admit(persistent_term:get(?MODULE)) of
        {true, LeftOut} ->
            report(#{
                what => unexpected_unlock,
                key => Key,
                pid => self(),
                holders => holders(Key),
                left_out => LeftOut
            });
        false ->
            ok
    end.

%% One of those that `format/1' puts into words.
-spec report(#{what := atom(), atom() => term()}) -> ok.
report(Report) ->
    ?LOG_ERROR(Report, #{domain => [canal_lock], report_cb => fun ?MODULE:format/1}).

%% One of those who come at once, and how many have been left out since the last.
admit(Limiter) ->
    Now = now_ms(),
    Last = atomics:get(Limiter, ?LAST_MS),
    case Now - Last >= ?INTERVAL_MS andalso atomics:compare_exchange(Limiter, ?LAST_MS, Last, Now) of
        ok ->
            {true, atomics:exchange(Limiter, ?LEFT_OUT, 0)};
        _ ->
            ok = atomics:add(Limiter, ?LEFT_OUT, 1),
            false
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

holders(Key) ->
    try
        canal_lock_view:holders(Key)
    catch
        %% The table has been closed since.
        error:_ -> []
    end.

-spec format(map()) -> {io:format(), [term()]}.
format(#{what := unexpected_unlock, key := Key, pid := Pid, holders := Holders, left_out := LeftOut}) ->
    {"canal_lock: ~p released a permit of ~ts that it does not hold; ~ts~ts", [
        Pid, short(Key), format_holders(Holders), format_left_out(LeftOut)
    ]};
format(#{what := unknown_message, kind := Kind, message := Message}) ->
    {"canal_lock: the manager got an unknown ~ts: ~ts. No further ones will be reported", [Kind, short(Message)]};
format(#{what := event_failed, event := Event, class := Class, reason := Reason, stacktrace := Stacktrace}) ->
    {"canal_lock: telemetry did not take the event ~0tp: ~ts: ~ts in ~ts. No further ones will be reported", [
        Event, Class, short(Reason), short(Stacktrace)
    ]}.

short(Term) ->
    canal_lock_text:short(Term, ?MAX_CHARACTERS).

format_holders([]) ->
    "nobody does";
format_holders(Holders) ->
    Named = lists:sublist(Holders, ?NAMED),
    Names = lists:join(", ", [io_lib:format("~p (~b)", [Pid, Permits]) || {Pid, Permits} <- Named]),
    case length(Holders) - length(Named) of
        0 -> ["held by ", Names];
        Others -> io_lib:format("held by ~ts and ~b others", [Names, Others])
    end.

format_left_out(0) -> "";
format_left_out(LeftOut) -> io_lib:format(" (~b such reports left out)", [LeftOut]).
