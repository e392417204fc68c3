%% Serves the numbers of canal_lock:info/0 to Prometheus, in its text format. The server is httpd, of OTP's inets. Copy
%% this module, add inets to your applications, and put this child into your supervision tree:
%%
%%     #{id => permit_metrics, start => {permit_metrics, start_link, [9568]}, type => supervisor}
%%
%% The server listens on all addresses, and has the same answer for each path. While canal_lock has no open table, it
%% answers 500, and Prometheus shows the target as down.
-module(permit_metrics).

-export([start_link/1, do/1]).

-include_lib("inets/include/httpd.hrl").

-spec start_link(inet:port_number()) -> {ok, pid()} | {error, term()}.
start_link(Port) ->
    Config = [{port, Port}, {server_name, "metrics"}, {server_root, "/"}, {document_root, "/"}, {modules, [?MODULE]}],
    inets:start(httpd, Config, stand_alone).

%% httpd calls it for each request.
-spec do(#mod{}) -> {proceed, [{response, {response, [{atom(), term()}], string()}}]}.
do(#mod{}) ->
    Info = canal_lock:info(),
    Text = lists:flatten([metric(Metric, Info) || Metric <- metrics()]),
    Head = [{code, 200}, {content_type, "text/plain; version=0.0.4"}, {content_length, integer_to_list(length(Text))}],
    {proceed, [{response, {response, Head, Text}}]}.

metric({Number, Type, Name, Help}, Info) ->
    Value = value(Number, map_get(Number, Info)),
    io_lib:format("# HELP ~s ~s~n# TYPE ~s ~s~n~s ~s~n", [Name, Help, Name, Type, Name, Value]).

%% Times are in seconds, as in all metrics of Prometheus.
value(Number, Time_us) when Number =:= wait_us; Number =:= longest_wait_us ->
    io_lib:format("~.6f", [Time_us / 1_000_000]);
value(_, Value) ->
    integer_to_list(Value).

%% All numbers of info/0, except two. `max_per' limits nothing. `granted' can decrease slightly, which Prometheus would
%% take for a restart of the counter. It is the sum of `permits', `released' and `released_by_death'.
metrics() ->
    [
        {permits, gauge, "canal_lock_permits", "Permits in use."},
        {holders, gauge, "canal_lock_holders", "Processes that hold permits."},
        {waiting, gauge, "canal_lock_waiting", "Requests that wait."},
        {keys, gauge, "canal_lock_keys", "Keys in the table."},
        {memory, gauge, "canal_lock_memory_bytes", "Memory that the native library has allocated."},
        {longest_wait_us, gauge, "canal_lock_longest_wait_seconds", "Longest wait since the last sweep began."},
        {refused, counter, "canal_lock_refused_total", "Answers full."},
        {released, counter, "canal_lock_released_total", "Permits released by calls."},
        {released_by_death, counter, "canal_lock_released_by_death_total", "Permits released by deaths."},
        {not_held, counter, "canal_lock_not_held_total", "Releases by callers that held no permit."},
        {reclaimed, counter, "canal_lock_reclaimed_total", "Idle keys that the sweep has removed."},
        {handed_over, counter, "canal_lock_handed_over_total", "Requests that waited and were granted."},
        {timed_out, counter, "canal_lock_timed_out_total", "Requests that waited until their timeout."},
        {wait_us, counter, "canal_lock_wait_seconds_total", "Time that requests have waited."},
        {transferred, counter, "canal_lock_transferred_total", "Permits given to another process."},
        {barriers_refused, counter, "canal_lock_barriers_refused_total", "Memory barriers that the system refused."}
    ].
