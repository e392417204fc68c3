%% @private
%% Holds one of the two locks of a singleton for as long as any process of the copy on this node lives.
%%
%% The agent unlocks a lock when its holder dies, so the holder must end last. This process ends when the copy has
%% ended, and kills it before if the lock is lost, or soon will be. If a process of the singleton is killed, the copy
%% ends while a guard lives and keeps its lock; that is why there are two.
-module(canal_lock_quorum_singleton_guard).

-behaviour(gen_server).

-export([start/2, child/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2]).

%% The longest wait in one request.
-define(WAIT_MS, 3_600_000).

%% Between a refusal, or the end of the agent, and the next request. As often as members reconnect.
-define(PAUSE_MS, 1000).

%% Parts of the lease, of which the holder's lease is 4/5 and `at_risk' comes after 2/5.
%% The agent reports that a lock is lost. It may hang, so the guard looks itself, well within the fifth that voters keep
%% a vote longer than its holder counts it.
-define(LOOK(Lease_ms), Lease_ms div 20).
%% After `at_risk': 1/10 before the lock is lost.
-define(KILL(Lease_ms), Lease_ms * 3 div 10).
%% Between the grant and the start of a copy. If the agent of the previous holder was killed or stopped, the names are
%% free when its guards begin to kill its copy. There are two such pauses.
-define(SETTLE(Lease_ms), Lease_ms div 100).

-record(state, {
    singleton :: pid(),
    name :: canal_lock_quorum:name(),
    lock = none :: canal_lock_quorum:lock() | none,
    lease_ms = 0 :: non_neg_integer(),
    copy = none :: pid() | none
}).

%% Requests the lock for a new process, which is linked to the caller and sends it `{granted, Guard, Lock}', and later
%% `{at_risk, Guard}'. Until it is granted, an exit signal ends the guard; then, the signal `shutdown' of the singleton
%% or its death ends it when no copy runs. It exits with `{shutdown, lost}' after it has killed a copy.
-spec start(Singleton :: pid(), canal_lock_quorum:name()) -> {ok, pid()}.
start(Singleton, Name) ->
    {ok, _} = gen_server:start(?MODULE, #state{singleton = Singleton, name = Name}, []).

%% The process of the child that runs under this guard.
-spec child(Guard :: pid()) -> pid() | undefined.
child(Guard) ->
    case gen_server:call(Guard, copy) of
        none -> undefined;
        Copy -> canal_lock_quorum_singleton_copy:child(Copy)
    end.

init(State = #state{singleton = Singleton}) ->
    true = link(Singleton),
    %% A busy node must not delay a kill.
    _ = process_flag(priority, high),
    {ok, State, {continue, lock}}.

handle_continue(lock, State = #state{singleton = Singleton, name = Name}) ->
    {Lock, Lease_ms} = lock(Name),
    ok = timer:sleep(?SETTLE(Lease_ms)),
    _ = process_flag(trap_exit, true),
    Singleton ! {granted, self(), Lock},
    look(State#state{lock = Lock, lease_ms = Lease_ms}).

lock(Name) ->
    try {canal_lock_quorum:lock(Name, ?WAIT_MS), canal_lock_quorum_agent:lease_ms()} of
        {{ok, Lock}, Lease_ms} -> {Lock, Lease_ms};
        {{error, timeout}, _} -> lock(Name);
        {{error, _}, _} -> lock_later(Name)
    catch
        %% Not started, or its agent was killed.
        error:badarg -> lock_later(Name);
        exit:_ -> lock_later(Name)
    end.

lock_later(Name) ->
    ok = timer:sleep(?PAUSE_MS),
    lock(Name).

handle_call({watch, Copy}, _From, State) ->
    _ = monitor(process, Copy),
    {reply, ok, State#state{copy = Copy}};
handle_call(copy, _From, State = #state{copy = Copy}) ->
    {reply, Copy, State}.

handle_cast(_, State) ->
    {noreply, State}.

handle_info({canal_lock_quorum, at_risk, Lock}, State = #state{singleton = Singleton, lock = Lock}) ->
    Singleton ! {at_risk, self()},
    _ = erlang:send_after(?KILL(State#state.lease_ms), self(), kill),
    {noreply, State};
handle_info({canal_lock_quorum, lost, Lock}, State = #state{lock = Lock}) ->
    kill({shutdown, lost}, State);
handle_info(kill, State) ->
    kill({shutdown, lost}, State);
handle_info(look, State) ->
    look(State);
handle_info({'DOWN', _, process, Copy, _}, State = #state{copy = Copy}) ->
    kill(normal, State);
handle_info({'EXIT', Singleton, _}, State = #state{singleton = Singleton, copy = none}) ->
    {stop, normal, State};
%% Also if the singleton has died: the copy was its child, and ends.
handle_info(_, State) ->
    {noreply, State}.

look(State = #state{lock = Lock, lease_ms = Lease_ms}) ->
    case is_held(Lock) of
        true ->
            _ = erlang:send_after(?LOOK(Lease_ms), self(), look),
            {noreply, State};
        false ->
            kill({shutdown, lost}, State)
    end.

is_held(Lock) ->
    try
        canal_lock_quorum:is_held(Lock)
    catch
        error:badarg -> false
    end.

kill(Reason, State = #state{copy = Copy}) ->
    _ = [ok = canal_lock_quorum_singleton_copy:kill(Copy) || Copy =/= none],
    {stop, Reason, State}.
