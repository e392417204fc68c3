%% @private
%% Logs malformed frames. A member that runs another version can send thousands per second, so the agent and the voter
%% each log one per member and minute, with the number of those that they did not log.
-module(canal_lock_quorum_bad_frames).

-export([report/4, report/5]).

-export_type([reported/0]).

-define(INTERVAL_MS, 60_000).

%% When a frame of a member was logged last, and how many have come since.
-type reported() :: #{canal_lock_quorum_config:place() => {At_ms :: integer(), Suppressed :: non_neg_integer()}}.

-spec report(canal_lock_quorum_config:place(), Why :: binary(), canal_lock_quorum_config:config(), reported()) ->
    reported().
report(Place, Why, Config, Reported) ->
    report(Place, Why, Config, Reported, erlang:monotonic_time(millisecond)).

-spec report(Place, Why :: binary(), canal_lock_quorum_config:config(), reported(), Now_ms :: integer()) ->
    reported()
when
    Place :: canal_lock_quorum_config:place().
report(Place, Why, #{members := Members}, Reported, Now_ms) ->
    case Reported of
        #{Place := {At_ms, Suppressed}} when Now_ms < At_ms + ?INTERVAL_MS ->
            Reported#{Place := {At_ms, Suppressed + 1}};
        _ ->
            {_, Suppressed} = maps:get(Place, Reported, {never, 0}),
            Details = #{node => lists:nth(Place + 1, Members), why => Why, suppressed => Suppressed},
            ok = canal_lock_quorum_reports:report(bad_frame, Details),
            Reported#{Place => {Now_ms, 0}}
    end.
