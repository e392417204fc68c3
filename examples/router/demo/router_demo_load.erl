%% Generates load with wrk, an external program. Each connection sends its next request when it has the answer. At the
%% end, wrk closes its connections even if answers are pending.
-module(router_demo_load).

-export([start/4, stop/1]).

-export_type([load/0]).

-opaque load() :: port().

%% Stops wrk also when this VM stops, which closes the port's end of the pipe.
-define(GUARD, "exec 3<&0; \"$@\" </dev/null & wrk=$!; { read -r _ <&3; kill $wrk; } & guard=$!; "
    "wait $wrk; status=$?; kill $guard; exit $status").

%% The caller must stop it.
-spec start(router_apps:host(), inet:port_number(), Connections :: pos_integer(), Seconds :: pos_integer()) -> load().
start(Host, Port, Connections, Seconds) ->
    Wrk =
        case os:find_executable("wrk") of
            false -> error("wrk is not installed; run make setup");
            Found -> Found
        end,
    Arguments = [
        "-c", ?GUARD, "sh", Wrk,
        "--threads", "1", "--connections", integer_to_list(Connections),
        "--duration", integer_to_list(Seconds) ++ "s",
        "--header", "Host: " ++ binary_to_list(Host),
        "--script", filename:join(code:priv_dir(router), "load.lua"),
        "http://127.0.0.1:" ++ integer_to_list(Port) ++ "/"
    ],
    open_port({spawn_executable, "/bin/sh"}, [{args, Arguments}, {line, 1024}, exit_status, stderr_to_stdout]).

%% Waits until wrk has exited.
-spec stop(load()) -> ok.
stop(Load) ->
    stop(Load, []).

stop(Load, Lines) ->
    receive
        {Load, {data, {_, Line}}} -> stop(Load, [Line | Lines]);
        {Load, {exit_status, 0}} -> ok;
        {Load, {exit_status, Status}} -> error({wrk, Status, lists:reverse(Lines)})
    end.
