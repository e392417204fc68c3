%% @private Supervises the quorum locks of a node: the voter (on a member), the agent, the process that keeps the node
%% connected, and the one that emits telemetry events. Each can be restarted alone: the next voter reads the state file,
%% the next agent notifies the holders of the locks that the previous one held, and connections belong to the VM.
-module(canal_lock_quorum_sup).

-behaviour(supervisor).

-export([start_link/1, configure/1, stop/0, init/1]).
-export([needed_vm/1]).

-define(NAME, canal_lock_quorum).

%% A process crashes only through a bug of canal_lock or an `exit(Pid, kill)' from outside.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

%% Time for a clean shutdown to notify the other nodes.
-define(SHUTDOWN_MS, 5000).

%% `{error, {state_file_in_use, Path}}' if another node of this machine has the same file. `{error,
%% {state_file_not_writable, Path, Text}}' if it cannot be written, because its folder does not exist, for example.
%% `{error, {state_file_not_usable, Path, Text}}' if it is another file, or that of another node. `{error, {lease_ms,
%% Given, Stored}}' if the view in it has another lease.
-spec start_link(canal_lock_quorum:options()) -> {ok, pid()} | {error, term()} | {raise, canal_lock_errors:cause()}.
start_link(Options) ->
    case configure(Options) of
        {ok, Config} -> start(Config);
        Other -> Other
    end.

%% The configuration of these options, or why a start with them would fail.
-spec configure(canal_lock_quorum:options()) ->
    {ok, canal_lock_quorum_config:config()} | {error, term()} | {raise, canal_lock_errors:cause()}.
configure(Options) ->
    case {canal_lock_quorum_config:wrong_option(Options), canal_lock_quorum_nif:load(), whereis(?NAME)} of
        {none, ok, undefined} ->
            Config = canal_lock_quorum_config:make(Options),
            case canal_lock_quorum_state_file:check(Config) of
                ok -> {ok, Config};
                Error -> Error
            end;
        {none, ok, Pid} ->
            {error, {already_started, Pid}};
        {none, {error, Text}, _} ->
            {error, {nif_not_loaded, Text}};
        {Wrong, _, _} ->
            {raise, {badarg, #{1 => canal_lock_errors:option_text(Wrong, Options)}}}
    end.

start(Config) ->
    Version = erlang:system_info(version),
    _ = [
        canal_lock_quorum_reports:report(old_vm, #{version => Version, needed => Needed})
     || Needed <- needed_vm(Version)
    ],
    supervisor:start_link({local, ?NAME}, ?MODULE, Config).

%% The version of erts from which on this OTP release does not lose the wakeup of a process that keeps its messages off
%% the heap, as the agent and the voter do (OTP-18647, OTP-18838, OTP-19008). Empty if the given version does not.
-spec needed_vm(string()) -> [string()].
needed_vm(Version) ->
    [First | _] = Numbers = numbers(Version),
    [Needed || Needed <- ["13.2.2.7", "14.2.3"], hd(numbers(Needed)) =:= First, Numbers < numbers(Needed)].

%% Of a version as 14.2.3 or 14.0-rc1.
numbers(Version) ->
    [list_to_integer(Number) || Number <- string:lexemes(hd(string:split(Version, "-")), ".")].

-spec stop() -> ok.
stop() ->
    gen_server:stop(?NAME).

init(Config = #{has_voter := HasVoter}) ->
    %% The table must outlive the agent, because the next agent notifies the holders.
    ok = canal_lock_quorum_lock_table:new(),
    %% The first one ends last, and says that the voter has ended.
    Voters = [canal_lock_quorum_voter || HasVoter],
    Children = [canal_lock_quorum_connections] ++ Voters ++ [canal_lock_quorum_agent, canal_lock_quorum_telemetry],
    Specs = [
        #{id => Module, start => {Module, start_link, [Config]}, shutdown => ?SHUTDOWN_MS}
     || Module <- Children
    ],
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Specs}}.
