%% @private
%% Logs what can repeat quickly: malformed frames of a member, or failed writes to a full disk. A process logs one
%% report of a kind and subject per minute, with the number of those that it did not log.
-module(canal_lock_quorum_log_limit).

-export([report/4, report_at/4]).

-export_type([reported/0]).

-define(INTERVAL_MS, 60_000).

-type kind() :: {What :: atom(), Subject :: term()}.

%% When a report of a kind was logged last, and how many have come since.
-type reported() :: #{kind() => {At_ms :: integer(), Suppressed :: non_neg_integer()}}.

%% The details of the log report are `Details' and `suppressed'.
-spec report(What :: atom(), Subject :: term(), Details :: map(), reported()) -> reported().
report(What, Subject, Details, Reported) ->
    report_at({What, Subject}, Details, Reported, erlang:monotonic_time(millisecond)).

-spec report_at(kind(), Details :: map(), reported(), Now_ms :: integer()) -> reported().
report_at(Kind = {What, _}, Details, Reported, Now_ms) ->
    case Reported of
        #{Kind := {At_ms, Suppressed}} when Now_ms < At_ms + ?INTERVAL_MS ->
            Reported#{Kind := {At_ms, Suppressed + 1}};
        _ ->
            {_, Suppressed} = maps:get(Kind, Reported, {never, 0}),
            ok = canal_lock_quorum_reports:report(What, Details#{suppressed => Suppressed}),
            Reported#{Kind => {Now_ms, 0}}
    end.
