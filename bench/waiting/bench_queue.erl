%% A plain queue as a gen_server, for comparison: a counter of free permits, a queue of callers, and a monitor for each
%% holder and each waiter. As in poolboy, a call that times out sends a cancel, and a release is a cast. Less code than
%% poolboy, and no worker processes.
-module(bench_queue).
-behaviour(gen_server).

-export([start_link/1, acquire/2, release/2, waiting/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-export_type([permit/0]).

-type permit() :: reference().

-record(state, {
    free :: non_neg_integer(),
    held = #{} :: #{permit() => Monitor :: reference()},
    waiting = queue:new() :: queue:queue({gen_server:from(), permit(), Monitor :: reference()})
}).

-spec start_link(Permits :: pos_integer()) -> {ok, pid()}.
start_link(Permits) ->
    gen_server:start_link(?MODULE, Permits, []).

%% The reply to a call that has timed out is dropped by the VM (gen_server:call/3 uses an alias).
-spec acquire(pid(), timeout()) -> {acquired, permit()} | full.
acquire(Queue, Timeout_ms) ->
    Permit = make_ref(),
    try
        gen_server:call(Queue, {acquire, Permit}, Timeout_ms)
    catch
        exit:{timeout, _} ->
            ok = gen_server:cast(Queue, {cancel, Permit}),
            full
    end.

-spec release(pid(), permit()) -> ok.
release(Queue, Permit) ->
    gen_server:cast(Queue, {release, Permit}).

-spec waiting(pid()) -> non_neg_integer().
waiting(Queue) ->
    gen_server:call(Queue, waiting).

-spec init(pos_integer()) -> {ok, #state{}}.
init(Permits) ->
    {ok, #state{free = Permits}}.

-spec handle_call({acquire, permit()} | waiting, gen_server:from(), #state{}) ->
    {reply, term(), #state{}} | {noreply, #state{}}.
handle_call({acquire, Permit}, {Caller, _}, State = #state{free = Free, held = Held}) when Free > 0 ->
    Monitor = monitor(process, Caller),
    {reply, {acquired, Permit}, State#state{free = Free - 1, held = Held#{Permit => Monitor}}};
handle_call({acquire, Permit}, {Caller, _} = From, State = #state{waiting = Waiting}) ->
    Monitor = monitor(process, Caller),
    {noreply, State#state{waiting = queue:in({From, Permit, Monitor}, Waiting)}};
handle_call(waiting, _From, State = #state{waiting = Waiting}) ->
    {reply, queue:len(Waiting), State}.

-spec handle_cast({release | cancel, permit()}, #state{}) -> {noreply, #state{}}.
handle_cast({_, Permit}, State = #state{held = Held}) when is_map_key(Permit, Held) ->
    {Monitor, Others} = maps:take(Permit, Held),
    true = demonitor(Monitor, [flush]),
    {noreply, pass_on(State#state{held = Others})};
handle_cast({cancel, Permit}, State = #state{waiting = Waiting}) ->
    Stays = fun({_, Other, Monitor}) -> Other =/= Permit orelse not demonitor(Monitor, [flush]) end,
    {noreply, State#state{waiting = queue:filter(Stays, Waiting)}}.

-spec handle_info({'DOWN', reference(), process, pid(), term()}, #state{}) -> {noreply, #state{}}.
handle_info({'DOWN', Monitor, process, _, _}, State = #state{held = Held, waiting = Waiting}) ->
    case [Permit || {Permit, M} <- maps:to_list(Held), M =:= Monitor] of
        [Permit] ->
            {noreply, pass_on(State#state{held = maps:remove(Permit, Held)})};
        [] ->
            Stays = fun({_, _, Other}) -> Other =/= Monitor end,
            {noreply, State#state{waiting = queue:filter(Stays, Waiting)}}
    end.

pass_on(State = #state{free = Free, held = Held, waiting = Waiting}) ->
    case queue:out(Waiting) of
        {empty, _} ->
            State#state{free = Free + 1};
        {{value, {From, Permit, Monitor}}, Others} ->
            ok = gen_server:reply(From, {acquired, Permit}),
            State#state{held = Held#{Permit => Monitor}, waiting = Others}
    end.
