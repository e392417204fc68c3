%% @private
%% A supervisor of one canal_lock_manager: the child that `canal_lock:child_spec/1' describes, and `canal_lock_sup' of
%% the application. It restarts the manager itself, so a crash of the manager does not count as one of the child.
-module(canal_lock_starter).

-behaviour(supervisor).

-export([child_spec/2, start_link/1, start_link/2]).
-export([init/1]).

%% A manager crashes only through a bug of canal_lock or an `exit(Pid, kill)' from outside. A restart loses nothing, so
%% many restarts are allowed.
-define(RESTARTS, 10).
-define(WITHIN_S, 10).

-spec child_spec(Id :: term(), canal_lock:options()) -> supervisor:child_spec().
child_spec(Id, Options) ->
    #{id => Id, start => {?MODULE, start_link, [Options]}, type => supervisor}.

-spec start_link(canal_lock:options()) -> {ok, pid()} | {error, term()}.
start_link(Options) ->
    loaded(fun() -> supervisor:start_link(?MODULE, [Options]) end).

%% `canal_lock_sup', of the application. Without a manager if the argument is `none'.
-spec start_link(Name :: atom(), canal_lock:options() | none) -> {ok, pid()} | {error, term()}.
start_link(Name, none) ->
    supervisor:start_link({local, Name}, ?MODULE, []);
start_link(Name, Options) ->
    loaded(fun() -> supervisor:start_link({local, Name}, ?MODULE, [Options]) end).

%% The error of a supervisor would hide the reason.
loaded(Start) ->
    case canal_lock_library:ensure_loaded() of
        ok -> Start();
        {error, Sentences} -> {error, {nif_not_loaded, Sentences}}
    end.

%% The child is not restarted after `canal_lock:stop/0', also if it had crashed before.
init(Starts) ->
    Stops = canal_lock_manager:stops(),
    Children = [
        #{
            id => canal_lock,
            start => {canal_lock_manager, start_link, [maps:merge(#{keep_on_crash => true}, Options), Stops]},
            restart => transient
        }
     || Options <- Starts
    ],
    {ok, {#{strategy => one_for_one, intensity => ?RESTARTS, period => ?WITHIN_S}, Children}}.
