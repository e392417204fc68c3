%% @private
%% Log reports of the cluster permits, with the metadata `canal_lock => cluster' and without a domain, as
%% canal_lock_reports.
-module(canal_lock_cluster_reports).

-include_lib("kernel/include/logger.hrl").

-export([report/2, format/1]).

%% Logs a report. `format/1' has all kinds of reports, and the details of each.
-spec report(What :: atom(), Details :: #{atom() => term()}) -> ok.
report(What, Details) ->
    Level = case What of lost -> warning; event_failed -> error end,
    ?LOG(Level, Details#{what => What}, #{canal_lock => cluster, report_cb => fun ?MODULE:format/1}).

-spec format(map()) -> {io:format(), [term()]}.
format(#{what := lost, session := Session, permits := Permits}) ->
    {"canal_lock_cluster: session ~b of this node has ended, and ~b permits are lost: canal_lock_cluster was stopped, "
        "or the node was cut off from a quorum of the members", [Session, Permits]};
format(Failure = #{what := event_failed}) ->
    {"canal_lock_quorum: " ++ Format, Values} = canal_lock_quorum_reports:format(Failure),
    {"canal_lock_cluster: " ++ Format, Values}.
