%% The processes of prop_canal_lock_waits: they make the calls of `test_wait_model', and show its snapshots.
-module(test_wait_clients).

-export([start/3, stop/1, perform/2, snapshot/1, returned/1]).

-export_type([clients/0]).

-type client() :: test_wait_model:client().
-type where() :: here | test_nodes:a_node().

-record(clients, {
    keys :: [term()],
    %% The node of the table and the near clients, and that of the far ones.
    table :: where(),
    far :: test_nodes:a_node() | none,
    workers = #{} :: #{parent | client() => {where(), pid()}},
    names = #{} :: #{pid() => test_wait_model:holder()},
    %% A process that has died.
    dead :: pid(),
    requests = #{} :: #{reference() => pos_integer()},
    %% The number of the next wait. All waits have numbers, also those of calls.
    next = 1 :: pos_integer(),
    %% Calls that wait.
    calls = #{} :: #{client() => reference()}
}).

-opaque clients() :: #clients{}.

%% Long enough to suspend a client that waits. On a busy machine the timeout can expire before.
-define(TIMEOUT_MS, 20).

%% For a manager that sweeps only on request.
-define(NEVER_MS, 3_600_000).

-spec start([term()], [client()], {where(), test_nodes:a_node() | none}) -> clients().
start(Keys, Names, {Table, Far}) ->
    Dead = on(Table, fun() ->
        Pid = spawn(fun() -> ok end),
        test_await:down([Pid]),
        Pid
    end),
    Clients = #clients{keys = Keys, table = Table, far = Far, dead = Dead},
    lists:foldl(fun(Client, All) -> start_worker(Client, 0, All) end, Clients, [parent | Names]).

%% No process and no table is left.
-spec stop(clients()) -> ok.
stop(#clients{table = Table, workers = Workers}) ->
    %% The manager ends before its parent.
    on(Table, fun test_manager_crash:forget/0),
    [on(Where, fun() -> test_worker:kill(Pid) end) || {Where, Pid} <- maps:values(Workers)],
    flush().

%% Answers of calls that waited until the end.
flush() ->
    receive
        {Ref, _} when is_reference(Ref) -> flush()
    after 0 -> ok
    end.

start_worker(Client, Life, All = #clients{table = Table, far = Far, workers = Workers, names = Names}) ->
    Where = case test_wait_model:is_far(Client) of true -> Far; false -> Table end,
    Pid = case Where of here -> test_worker:start(); _ -> element(2, test_nodes:worker(Where)) end,
    All#clients{workers = Workers#{Client => {Where, Pid}}, names = Names#{Pid => {Client, Life}}}.

%% Makes a call. The answer is in the terms of the model, and `closed' if there is no table.
-spec perform(test_wait_model:call(), clients()) -> {test_wait_model:answer(), clients()}.
perform({acquire, Client, Key, Capacity, Permits, request, MaxWaiting}, All) ->
    Options = #{permits => Permits, max_waiting => MaxWaiting},
    case order(Client, All, fun() -> canal_lock:request(Key, Capacity, 1, Options) end) of
        {waiting, Ref} ->
            #clients{requests = Requests, next = Number} = All,
            {{waiting, Number}, All#clients{requests = Requests#{Ref => Number}, next = Number + 1}};
        Answer ->
            {Answer, All}
    end;
perform({acquire, Client, Key, Capacity, Permits, Kind, MaxWaiting}, All) ->
    Timeout_ms = maps:get(Kind, #{none => 0, runs => infinity, suspended => ?TIMEOUT_MS}),
    Acquire = acquiring(Client, Key, Capacity, options(Timeout_ms, Permits, MaxWaiting), All),
    case Kind of
        none -> {order(Client, All, Acquire), All};
        _ -> call(Client, Kind, Acquire, All)
    end;
perform({cancel, Client, Number}, All = #clients{requests = Requests}) ->
    [Ref] = [Ref || {Ref, Other} <- maps:to_list(Requests), Other =:= Number],
    {order(Client, All, fun() -> canal_lock:cancel(Ref) end), All};
perform({read, Client}, All) ->
    {named(order(Client, All, fun received/0), All), All};
perform({expire, Client}, All = #clients{calls = Calls}) ->
    true = resume(Client, All),
    {test_await:answer(maps:get(Client, Calls)), All#clients{calls = maps:remove(Client, Calls)}};
perform({release, Client, Key, Permits}, All = #clients{table = Table}) ->
    Release =
        case test_wait_model:is_far(Client) of
            true -> fun() -> canal_lock:release_on(test_nodes:name(Table), Key, #{permits => Permits}) end;
            false when Permits =:= 1 -> fun() -> canal_lock:release(Key) end;
            false -> fun() -> canal_lock:release(Key, #{permits => Permits}) end
        end,
    {order(Client, All, Release), All};
perform({give, Client, Key, Target, Permits}, All = #clients{dead = Dead, workers = Workers}) ->
    {_, Pid} = maps:get(Target, Workers, {none, Dead}),
    {order(Client, All, fun() -> canal_lock:give(Key, Pid, #{permits => Permits}) end), All};
perform({resized, Key, Capacity}, All) ->
    {order(parent, All, fun() -> canal_lock:resized(Key, Capacity, 1) end), All};
perform({die, Client}, All = #clients{workers = Workers, names = Names, calls = Calls}) ->
    {Where, Pid} = maps:get(Client, Workers),
    {Client, Life} = maps:get(Pid, Names),
    on(Where, fun() -> test_worker:kill(Pid) end),
    {dead, start_worker(Client, Life + 1, All#clients{calls = maps:remove(Client, Calls)})};
perform({start, Kind}, All) ->
    Options = #{keep_on_crash => Kind =:= keeping, sweep_interval_ms => ?NEVER_MS},
    Start = fun() ->
        process_flag(trap_exit, true),
        {ok, _} = canal_lock:start_link(1, Options),
        %% The first pass of a manager that adopts a table does not count as a sweep.
        [canal_lock_manager:sweep() || Kind =:= keeping],
        ok
    end,
    {order(parent, All, Start), All};
perform(sweep, All) ->
    {order(parent, All, fun canal_lock_manager:sweep/0), All};
perform(stop, All) ->
    {order(parent, All, fun canal_lock:stop/0), All};
perform(crash, All) ->
    {order(parent, All, fun() -> test_manager_crash:kill(whereis(canal_lock)) end), All}.

%% In the simplest form that has the same meaning.
options(Timeout_ms, 1, infinity) -> Timeout_ms;
options(Timeout_ms, Permits, MaxWaiting) -> #{timeout_ms => Timeout_ms, permits => Permits, max_waiting => MaxWaiting}.

acquiring(Client, Key, Capacity, Options, #clients{table = Table}) ->
    case test_wait_model:is_far(Client) of
        true -> fun() -> canal_lock:acquire_on(test_nodes:name(Table), Key, Capacity, 1, Options) end;
        false -> fun() -> canal_lock:acquire(Key, Capacity, 1, Options) end
    end.

%% A call that can wait. Answers `waits' when it does.
call(Client, Kind, Acquire, All = #clients{workers = Workers, calls = Calls, next = Number}) ->
    Before = waiting(All),
    Attempt = fun() -> attempt(Acquire) end,
    Ref =
        case maps:get(Client, Workers) of
            {here, Pid} -> test_worker:send_order(Pid, Attempt);
            Worker -> test_nodes:send_order(Worker, Attempt)
        end,
    Waits = fun() -> waiting(All) > Before end,
    test_await:value(true, fun() -> Waits() orelse has_answered(Ref) end),
    Kind =:= suspended andalso suspend(Client, All),
    case Waits() of
        true ->
            {waits, All#clients{calls = Calls#{Client => Ref}, next = Number + 1}};
        false ->
            Kind =:= suspended andalso resume(Client, All),
            {test_await:answer(Ref), All}
    end.

has_answered(Ref) ->
    case answered(Ref) of
        {answer, Answer} ->
            self() ! {Ref, Answer},
            true;
        none ->
            false
    end.

%% The requests of all keys.
waiting(#clients{table = Table}) ->
    on(Table, fun() -> attempt(fun() -> test_setup:info(waiting) end) end).

%% Only clients of this VM are suspended.
suspend(Client, #clients{workers = Workers}) ->
    {here, Pid} = maps:get(Client, Workers),
    erlang:suspend_process(Pid).

resume(Client, #clients{workers = Workers}) ->
    {here, Pid} = maps:get(Client, Workers),
    erlang:resume_process(Pid).

%% The answers of calls that waited.
-spec returned(clients()) -> {[{client(), test_wait_model:answer()}], clients()}.
returned(All = #clients{calls = Calls}) ->
    Answers = [{Client, Answer} || {Client, Ref} <- maps:to_list(Calls), {answer, Answer} <- [answered(Ref)]],
    {Answers, All#clients{calls = maps:without([Client || {Client, _} <- Answers], Calls)}}.

answered(Ref) ->
    receive
        {Ref, Answer} -> {answer, Answer}
    after 0 -> none
    end.

on(here, Fun) -> Fun();
on(Node, Fun) -> test_nodes:call(Node, Fun).

%% Calls a function in the process of a client.
order(Client, #clients{workers = Workers}, Fun) ->
    {Where, Pid} = maps:get(Client, Workers),
    on(Where, fun() -> test_worker:order(Pid, fun() -> attempt(Fun) end) end).

attempt(Fun) ->
    try
        Fun()
    catch
        error:badarg -> closed;
        %% Of a call to another node.
        exit:{_, {canal_lock, _, _}} -> closed;
        Class:Reason -> {Class, Reason}
    end.

received() ->
    receive
        Message when element(1, Message) =:= canal_lock -> [Message | received()]
    after 0 -> []
    end.

%% Messages in the terms of the model.
named(Messages, #clients{requests = Requests}) ->
    lists:sort([{maps:get(Ref, Requests, call), Ended} || {canal_lock, Ref, Ended} <- Messages]).

%% The visible state, in the terms of the model.
-spec snapshot(clients()) -> map().
snapshot(All = #clients{keys = Keys, table = Table, workers = Workers, names = Names}) ->
    Pids = [{Client, Pid} || {Client, {Where, Pid}} <- maps:to_list(Workers), Client =/= parent, Where =:= Table],
    {Mailboxes, Shown} = on(Table, fun() ->
        Mailboxes = [{Client, element(2, process_info(Pid, messages))} || {Client, Pid} <- Pids],
        {Mailboxes, attempt(fun() -> shown(Keys, maps:keys(Names)) end)}
    end),
    Mail = maps:from_list([{Client, named(Messages, All)} || {Client, Messages} <- Mailboxes]),
    case Shown of
        closed ->
            #{table => closed, mail => Mail};
        #{holders := HoldersOf, held := Held} ->
            Name = fun(Pid) -> maps:get(Pid, Names, {unknown, Pid}) end,
            Shown#{
                table => open,
                mail => Mail,
                holders := [{Key, lists:sort([{Name(Pid), N} || {Pid, N} <- Holders])} || {Key, Holders} <- HoldersOf],
                held := lists:sort([{Name(Pid), lists:sort(Of)} || {Pid, Of = [_ | _]} <- Held])
            }
    end.

shown(Keys, Pids) ->
    #{
        info => maps:without([max_per, memory, barriers_refused], canal_lock:info()),
        counts => [{Key, canal_lock:count(Key)} || Key <- Keys],
        waiting => [{Key, canal_lock:waiting(Key)} || Key <- Keys],
        keys => lists:sort(canal_lock:keys()),
        holders => [{Key, canal_lock:holders(Key)} || Key <- Keys],
        held => [{Pid, canal_lock:held(Pid)} || Pid <- Pids],
        audit => canal_lock:audit()
    }.
