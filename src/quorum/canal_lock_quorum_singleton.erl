%% @doc Runs one copy of a child in the cluster: on the node that holds a lock of {@link canal_lock_quorum}.
%%
%% Add the same child to the supervision tree of each node, member or client, after canal_lock_quorum:
%%
%% ```
%% canal_lock_quorum_singleton:child_spec(#{name => mailer, child => my_mailer:child_spec()}).
%% '''
%%
%% On each node, a <em>singleton process</em> waits for the lock. The one that gets it starts the child.
%%
%% <ul>
%% <li>The lock is at risk (see {@link canal_lock_quorum}): the child is stopped, as its specification says, and started
%% where the lock is granted next. If it still runs after three tenths of the lease (3 s), it is killed, a tenth before
%% the lock is lost. If the lock is revoked, the child is killed at once.</li>
%% <li>The singleton process is shut down: the child is stopped, and the lock is unlocked then. Another node starts its
%% child after two round trips and a fiftieth of the lease (0.2 s).</li>
%% <li>The node dies: another one starts its child after the lease (10 s).</li>
%% <li>The child crashes: it is restarted, up to three times within 5 s. Then, or if it cannot be started, the singleton
%% process ends with the reason. So its supervisor decides, and another node may get the lock. For other limits, let the
%% child be a supervisor.</li>
%% <li>The child ends and is not restarted (`transient', `temporary'): no node runs it, until the singleton process ends
%% or its lock is lost.</li>
%% </ul>
%%
%% A kill reaches all processes that the child and its descendants have started by `proc_lib', as `gen_server' and
%% supervisors do, also those that trap exits. There are never two copies, also if any one process of a singleton is
%% killed. The exceptions are those of a lock: a node that was suspended for longer than the lease runs its child for
%% some milliseconds when it continues, and so may a node whose canal_lock_quorum is killed or stopped under the child.
%% A resource that must not be changed twice can check the fence: if `child' is a function, it is called with the lock.
%%
%% The names of the locks are `{canal_lock_quorum_singleton, Name}' and `{canal_lock_quorum_singleton, Name, 2}'.
%% {@link canal_lock_quorum:force_unlock/1} of the first one moves the child.
-module(canal_lock_quorum_singleton).

-behaviour(gen_server).

-define(ERRORS, ?MODULE).
-include("../canal_lock_errors.hrl").

-compile({no_auto_import, [whereis/1]}).

-export([start_link/1, child_spec/1, whereis/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).
%% For the macros, and for Elixir.
-export([wrong/2, wrong_option/1, format_error/2]).

-export_type([options/0, child/0]).

-type child() :: supervisor:child_spec() | fun((canal_lock_quorum:lock()) -> supervisor:child_spec()).
%% A specification, or a function that returns one for the lock that is held.

-type options() :: #{name := canal_lock_quorum:name(), child := child()}.
%% `name': that of a lock, of at most 900 bytes in the external term format, and the same on all nodes. `child': see
%% {@type child()}.

%% How long whereis/1 waits for the node of the child.
-define(ASK_MS, 5000).

%% Of a name. The names of its locks are longer.
-define(MAX_BYTES, 900).

-record(state, {
    name :: canal_lock_quorum:name(),
    child :: child(),
    %% The newest first. The second one is started when the first one has its lock, and a copy when both have.
    guards = [] :: [pid()],
    lock = none :: canal_lock_quorum:lock() | none,
    copy = none :: none | pid() | ended,
    is_stopping = false :: boolean(),
    %% Why the copy has ended, unless a guard has ended it.
    failure = none :: none | {failed, Reason :: term()}
}).

%% @doc Starts the singleton process of this node, linked to the caller. Does not wait for the lock. Raises `badarg' if
%% an option is wrong, or if canal_lock_quorum is not started on this node. If it stops later, the singleton process
%% waits until it runs again.
-spec start_link(options()) -> {ok, pid()}.
start_link(Options) ->
    ?CHECKED([Options], ?ANSWER([Options], start(Options))).

start(Options) ->
    case erlang:whereis(canal_lock_quorum) of
        undefined -> {raise, not_started};
        _ -> gen_server:start_link(?MODULE, Options, [])
    end.

%% @doc The child specification of the singleton process, for a supervisor. Its `shutdown' is `infinity', because that
%% of the child limits the time. Raises `badarg' if an option is wrong.
-spec child_spec(options()) -> supervisor:child_spec().
child_spec(Options) ->
    ?CHECKED([Options], #{
        id => {?MODULE, maps:get(name, Options)},
        start => {?MODULE, start_link, [Options]},
        shutdown => infinity
    }).

%% @doc The process of the child, from any member or client. `undefined' if it does not run, or if its node does not
%% answer within five seconds.
%%
%% The answer can be outdated when the call returns: the child may have ended, or moved to another node. So monitor the
%% process, and ask again when it ends. Waits while the child starts. Raises as {@link canal_lock_quorum:holder/1}.
%% Cost: that function, which asks each node, and a call to the node of the child.
-spec whereis(canal_lock_quorum:name()) -> pid() | undefined.
whereis(Name) ->
    ?CHECKED([Name], find(Name)).

find(Name) ->
    {Locks, _Silent} = canal_lock_quorum:holder(lock_name(1, Name)),
    Children = [child_of(Guard) || #{holder := Guard, held := true} <- Locks],
    hd([Child || Child <- Children, is_pid(Child)] ++ [undefined]).

child_of(Guard) ->
    try
        erpc:call(node(Guard), canal_lock_quorum_singleton_guard, child, [Guard], ?ASK_MS)
    catch
        %% No answer, or the guard has ended.
        _:_ -> undefined
    end.

lock_name(1, Name) -> {?MODULE, Name};
lock_name(2, Name) -> {?MODULE, Name, 2}.

%% @private
init(#{name := Name, child := Child}) ->
    _ = process_flag(trap_exit, true),
    {ok, add_guard(#state{name = Name, child = Child})}.

add_guard(State = #state{name = Name, guards = Guards}) ->
    {ok, Guard} = canal_lock_quorum_singleton_guard:start(self(), lock_name(length(Guards) + 1, Name)),
    State#state{guards = [Guard | Guards]}.

%% @private
handle_call(_, _From, State) ->
    {reply, {error, unknown_call}, State}.

%% @private
handle_cast(_, State) ->
    {noreply, State}.

%% @private
handle_info({granted, _, Lock}, State = #state{guards = [_], is_stopping = false}) ->
    {noreply, add_guard(State#state{lock = Lock})};
handle_info({granted, _, _}, State = #state{guards = [_, _], is_stopping = false}) ->
    next(start_copy(State));
handle_info({at_risk, _}, State) ->
    next(stop(State));
handle_info({'EXIT', Pid, Reason}, State) ->
    next(ended(Pid, Reason, State));
handle_info(_, State) ->
    {noreply, State}.

start_copy(State = #state{guards = Guards, child = Child, lock = Lock}) ->
    case canal_lock_quorum_singleton_copy:start_link(Guards, Child, Lock) of
        {ok, Copy} -> State#state{copy = Copy};
        {error, {shutdown, Reason}} -> stop(State#state{failure = {failed, Reason}});
        {error, Reason} -> stop(State#state{failure = {failed, Reason}});
        ignore -> stop(State)
    end.

%% The copy and the guards end later: ended/3.
stop(State = #state{copy = Copy, guards = Guards}) ->
    _ = [exit(Pid, shutdown) || Pid <- [Copy | Guards], is_pid(Pid)],
    State#state{is_stopping = true}.

ended(Copy, Reason, State = #state{copy = Copy, is_stopping = IsStopping, failure = Before}) ->
    Failure =
        case Reason of
            _ when IsStopping -> Before;
            shutdown -> {failed, reached_max_restart_intensity};
            _ -> {failed, Reason}
        end,
    stop(State#state{copy = ended, failure = Failure});
ended(Pid, Reason, State = #state{guards = Guards}) ->
    case lists:member(Pid, Guards) of
        true when Reason =:= normal; Reason =:= shutdown -> stop(State#state{guards = Guards -- [Pid]});
        %% The guard has lost its lock and killed the copy, or was killed.
        true -> stop(State#state{guards = Guards -- [Pid], failure = none});
        false -> State
    end.

%% When all have ended.
next(State = #state{name = Name, copy = Copy, guards = [], failure = none}) when not is_pid(Copy) ->
    _ = [canal_lock_quorum_reports:report(singleton_stopped, #{name => Name}) || Copy =:= ended],
    {noreply, add_guard(State#state{copy = none, is_stopping = false})};
next(State = #state{copy = Copy, guards = [], failure = {failed, Reason}}) when not is_pid(Copy) ->
    {stop, Reason, State};
next(State) ->
    {noreply, State}.

%% @private
terminate(_, State) ->
    await_end(stop(State)).

await_end(#state{copy = Copy, guards = []}) when not is_pid(Copy) -> ok;
await_end(State) -> receive {'EXIT', Pid, Reason} -> await_end(ended(Pid, Reason, State)) end.

%% @private
wrong(whereis, Arguments) -> canal_lock_errors:wrong_arguments([{"Name", fun name/1}], Arguments);
wrong(_, Arguments) -> canal_lock_errors:wrong_arguments([{"Options", {options, known()}}], Arguments).

%% @private
wrong_option(Options) -> canal_lock_errors:wrong_option(known(), Options).

known() -> [{name, {required, fun name/1}}, {child, {required, fun child/1}}].

name(Name) ->
    IsRight = case canal_lock_quorum_names:encode(Name) of
        {ok, Bytes} -> byte_size(Bytes) =< ?MAX_BYTES;
        {error, _} -> false
    end,
    {IsRight, "be the name of a lock, of at most 900 bytes"}.

child(Child) ->
    IsRight = is_function(Child, 1) orelse supervisor:check_childspecs([Child]) =:= ok,
    {IsRight, "be a child specification or a function of arity 1"}.

%% @private
format_error(_Reason, Stack) ->
    canal_lock_errors:format_error(Stack, fun wrong/2, fun(Cause) ->
        #{general => canal_lock_quorum_errors:explain(Cause)}
    end).
