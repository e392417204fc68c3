%% @private
%% Log reports of permits, with the metadata `canal_lock => permits'. They have no domain: OTP's default handler drops
%% the events of all domains except its own.
-module(canal_lock_reports).

-include_lib("kernel/include/logger.hrl").

-export([open/0, unexpected_release/1, report/1, warn/1, format/1]).

%% A faulty loop can release a key that it does not hold a million times per second. So there is at most one report per
%% interval, with the number of suppressed ones.
-define(INTERVAL_MS, 1000).

%% At most this many holders are named in a report.
-define(NAMED, 10).

%% About this many characters of a key or a message are shown.
-define(MAX_CHARACTERS, 200).

%% The limiter is an array: the time of the last report, and the number of suppressed ones since then.
-define(LAST_MS, 1).
-define(LEFT_OUT, 2).

%% Creates the limiter if it does not exist. It outlives the manager, as a kept table does.
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

%% Reports that the calling process has released a key that it does not hold.
-spec unexpected_release(canal_lock:key()) -> ok.
unexpected_release(Key) ->
    case admit(persistent_term:get(?MODULE)) of
        {true, LeftOut} ->
            report(#{
                what => unexpected_release,
                key => Key,
                pid => self(),
                holders => holders(Key),
                left_out => LeftOut
            });
        false ->
            ok
    end.

%% Logs a report. `format/1' has all kinds of reports.
-spec report(#{what := atom(), atom() => term()}) -> ok.
report(Report) ->
    ?LOG_ERROR(Report, #{canal_lock => permits, report_cb => fun ?MODULE:format/1}).

%% The same for what does no harm.
-spec warn(#{what := atom(), atom() => term()}) -> ok.
warn(Report) ->
    ?LOG_WARNING(Report, #{canal_lock => permits, report_cb => fun ?MODULE:format/1}).

%% Admits one of all concurrent reports, with the number of suppressed ones since the last.
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
        canal_lock_view:holders(local, Key)
    catch
        %% The table was closed in the meantime.
        error:_ -> []
    end.

-spec format(map()) -> {io:format(), [term()]}.
format(#{what := unexpected_release, key := Key, pid := Pid, holders := Holders, left_out := LeftOut}) ->
    {"canal_lock: ~p released key ~ts without holding a permit of it; holders: ~ts. "
        "Only the holder of a permit can release it~ts", [
        Pid, short(Key), format_holders(Holders), format_left_out(LeftOut)
    ]};
format(#{what := unknown_message, message := Message}) ->
    Format = "canal_lock: the manager ignored an unexpected message: ~ts. Find the sender; later ones are not logged",
    {Format, [short(Message)]};
format(#{what := options_ignored, ignored := Ignored, in_force := InForce, starter := Starter}) ->
    Format =
        "canal_lock: this node has started canal_lock with ~ts. Another start, by ~tp, with ~ts does not change that. "
        "Start it once, or with the same options",
    {Format, [format_options(maps:with(maps:keys(Ignored), InForce)), Starter, format_options(Ignored)]};
format(#{what := event_failed, event := Event, class := Class, reason := Reason, stacktrace := Stacktrace}) ->
    {"canal_lock: telemetry failed to emit the event ~0tp: ~ts: ~ts in ~ts. Later failures are not logged", [
        Event, Class, short(Reason), short(Stacktrace)
    ]}.

short(Term) ->
    canal_lock_text:short(Term, ?MAX_CHARACTERS).

format_options(Options) ->
    Sorted = lists:sort(maps:to_list(Options)),
    lists:join(", ", [io_lib:format("~s => ~tp", [Option, Value]) || {Option, Value} <- Sorted]).

format_holders([]) ->
    "none";
format_holders(Holders) ->
    Named = lists:sublist(Holders, ?NAMED),
    Names = lists:join(", ", [io_lib:format("~p (~b)", [Pid, Permits]) || {Pid, Permits} <- Named]),
    case length(Holders) - length(Named) of
        0 -> Names;
        Others -> io_lib:format("~ts and ~b others", [Names, Others])
    end.

format_left_out(0) -> "";
format_left_out(LeftOut) -> io_lib:format(" (~b similar reports suppressed)", [LeftOut]).
