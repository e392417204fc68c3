%% @private
%% The copy of a singleton that runs on this node: a supervisor of its child. It starts the child only if all guards
%% watch it. Each of these keeps its lock until kill/1 has returned, so no other node starts a copy before.
-module(canal_lock_quorum_singleton_copy).

-behaviour(supervisor).

-export([start_link/3, child/1, kill/1]).
-export([init/1]).

%% The defaults of Elixir.
-define(RESTARTS, 3).
-define(WITHIN_S, 5).

%% `ignore' if a guard has ended.
-spec start_link([Guard :: pid()], canal_lock_quorum_singleton:child(), canal_lock_quorum:lock()) ->
    supervisor:startlink_ret().
start_link(Guards, Child, Lock) ->
    supervisor:start_link(?MODULE, {Guards, Child, Lock}).

init({Guards, Child, Lock}) ->
    case lists:all(fun is_watched_by/1, Guards) of
        true -> {ok, {#{intensity => ?RESTARTS, period => ?WITHIN_S}, [specification(Child, Lock)]}};
        false -> ignore
    end.

is_watched_by(Guard) ->
    try
        gen_server:call(Guard, {watch, self()}, infinity) =:= ok
    catch
        exit:_ -> false
    end.

specification(Child, Lock) when is_function(Child, 1) -> Child(Lock);
specification(Child, _) -> Child.

%% Waits while the child starts.
-spec child(pid()) -> pid() | undefined.
child(Supervisor) ->
    case supervisor:which_children(Supervisor) of
        [{_, Child, _, _}] when is_pid(Child) -> Child;
        _ -> undefined
    end.

%% Kills what is left of a copy: the supervisor, which may be dead, and all processes that it and its descendants have
%% started, also those that trap exits or are not linked. They are dead when it returns.
-spec kill(pid()) -> ok.
kill(Supervisor) ->
    %% First the child: the search takes up to 7 us for each process of the node.
    {links, Linked} = info(Supervisor, links),
    kill([Supervisor | [Pid || Pid <- Linked, is_pid(Pid), is_part(Pid, Supervisor)]], Supervisor).

%% A process can have started another one before it died, so it searches until it finds none.
kill([], _) ->
    ok;
kill(Parts, Supervisor) ->
    Monitors = [{Pid, monitor(process, Pid)} || Pid <- Parts, exit(Pid, kill)],
    _ = [receive {'DOWN', Monitor, process, Pid, _} -> ok end || {Pid, Monitor} <- Monitors],
    kill([Pid || Pid <- processes(), is_part(Pid, Supervisor)], Supervisor).

%% By what proc_lib stores in each process that it starts.
is_part(Pid, Supervisor) ->
    {dictionary, Dictionary} = info(Pid, dictionary),
    lists:member(Supervisor, proplists:get_value('$ancestors', Dictionary, [])).

info(Pid, Item) ->
    case process_info(Pid, Item) of
        undefined -> {Item, []};
        Info -> Info
    end.
