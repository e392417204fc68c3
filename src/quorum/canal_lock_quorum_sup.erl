%% @private
%% The quorum locks of a node: a voter, an agent, and who keeps the node connected. None needs another to be restarted:
%% the voter's memory is in the native library, what the agent held is told to the holders by the next one, and
%% connections are the VM's.
-module(canal_lock_quorum_sup).

-behaviour(supervisor).

-export([start_link/1, stop/0, init/1]).

-define(NAME, canal_lock_quorum).

%% A process crashes by a bug of ours or by somebody's `exit(Pid, kill)'.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

%% To say good-bye to the other nodes.
-define(SHUTDOWN_MS, 5000).

-spec start_link(canal_lock_quorum_config:config()) -> {ok, pid()} | {error, term()}.
start_link(Config) ->
    supervisor:start_link({local, ?NAME}, ?MODULE, Config).

-spec stop() -> ok.
stop() ->
    gen_server:stop(?NAME).

init(Config) ->
    %% Who holds what: it must not be lost with the agent, whose successor tells the holders.
    ?NAME = ets:new(?NAME, [named_table, public, {write_concurrency, true}, {read_concurrency, true}]),
    Children = [canal_lock_quorum_voter, canal_lock_quorum_agent, canal_lock_quorum_links],
    Specs = [
        #{id => Module, start => {Module, start_link, [Config]}, shutdown => ?SHUTDOWN_MS}
     || Module <- Children
    ],
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Specs}}.
