%% The processes of prop_canal_lock_model: they make the calls of `test_model', and show its snapshots.
-module(test_model_clients).

-export([start/3, stop/1, perform/2, snapshot/1, returned/1]).

-export_type([clients/0]).

-type client() :: test_model:client().
-type where() :: here | test_nodes:a_node().

-record(clients, {
    %% With their names in the model.
    keys :: [{Name :: term(), term()}],
    %% The node of the table and the near clients, and that of the far ones.
    table :: where(),
    far :: test_nodes:a_node() | none,
    workers = #{} :: #{parent | client() => {where(), pid()}},
    names = #{} :: #{pid() => test_model:holder()},
    %% A process that has died.
    dead :: pid(),
    requests = #{} :: #{reference() => pos_integer()},
    %% The number of the next wait. All waits have numbers, also those of calls.
    next = 1 :: pos_integer(),
    %% Calls that wait.
    calls = #{} :: #{client() => {runs | suspended, reference()}}
}).

-opaque clients() :: #clients{}.

%% Long enough to suspend a client that waits. On a busy machine the timeout can expire before.
-define(TIMEOUT_MS, 20).

%% From OTP 28 on, the VM pauses the timer of a suspended process. OTP 29.0 loses a timer that expires while the process
%% is being suspended: such a client never returns. This is longer than a busy machine needs to suspend a client.
-define(PAUSED_TIMEOUT_MS, 200).

%% For a manager that sweeps only on request.
-define(NEVER_MS, 3_600_000).

-spec start([{Name :: term(), term()}], [client()], {where(), test_nodes:a_node() | none}) -> clients().
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
stop(#clients{table = Table, far = Far, workers = Workers}) ->
    %% The manager ends before its parent.
    on(Table, fun test_manager_crash:forget/0),
    [on(Where, fun() -> test_worker:kill(Pid) end) || {Where, Pid} <- maps:values(Workers)],
    Far =:= none orelse test_nodes:connect(Table, Far),
    flush().

%% Answers of calls that waited until the end.
flush() ->
    receive
        {Ref, _} when is_reference(Ref) -> flush()
    after 0 -> ok
    end.

start_worker(Client, Life, All = #clients{table = Table, far = Far, workers = Workers, names = Names}) ->
    Where = case test_model:is_far(Client) of true -> Far; false -> Table end,
    Pid = case Where of here -> test_worker:start(); _ -> element(2, test_nodes:worker(Where)) end,
    All#clients{workers = Workers#{Client => {Where, Pid}}, names = Names#{Pid => {Client, Life}}}.

%% Makes a call. The answer is in the terms of the model, and `closed' if there is no table.
-spec perform(test_model:call(), clients()) -> {test_model:answer(), clients()}.
perform({acquire, Client, Name, {MaxPer, Buckets}, Permits, request, MaxWaiting}, All) ->
    Key = term(Name, All),
    Options = #{permits => Permits, max_waiting => MaxWaiting},
    case order(Client, All, fun() -> canal_lock:request(Key, MaxPer, Buckets, Options) end) of
        {waiting, Ref} ->
            #clients{requests = Requests, next = Number} = All,
            {{waiting, Number}, All#clients{requests = Requests#{Ref => Number}, next = Number + 1}};
        Answer ->
            {Answer, All}
    end;
perform({acquire, Client, Key, Size, Permits, Kind, MaxWaiting}, All) ->
    Timeout_ms = maps:get(Kind, #{none => 0, runs => infinity, suspended => timeout_ms()}),
    Acquire = acquiring(Client, Key, Size, options(Timeout_ms, Permits, MaxWaiting), All),
    case Kind of
        none -> {order(Client, All, Acquire), All};
        _ -> call(Client, Kind, Acquire, All)
    end;
perform({with_permit, Client, Name, {MaxPer, Buckets}, Ending}, All) ->
    Key = term(Name, All),
    Count = fun() -> canal_lock:count(Key) end,
    Fun =
        case Ending of
            returns -> Count;
            nested -> fun() -> canal_lock:with_permit(Key, MaxPer, Buckets, Count) end;
            throws -> fun() -> throw(meant) end;
            raises -> fun() -> error(meant) end;
            exits -> fun() -> exit(meant) end;
            dies -> fun() -> exit(self(), kill) end;
            stops -> fun canal_lock:stop/0
        end,
    case order(Client, All, fun() -> canal_lock:with_permit(Key, MaxPer, Buckets, Fun) end) of
        dead -> {dead, successor(Client, All)};
        Answer -> {Answer, All}
    end;
perform({cancel, Client, Number}, All = #clients{requests = Requests}) ->
    [Ref] = [Ref || {Ref, Other} <- maps:to_list(Requests), Other =:= Number],
    {order(Client, All, fun() -> canal_lock:cancel(Ref) end), All};
perform({read, Client}, All) ->
    {named(order(Client, All, fun received/0), All), All};
perform({expire, Client}, All = #clients{calls = Calls}) ->
    ok = resume(Client, All),
    {suspended, Ref} = maps:get(Client, Calls),
    {test_await:answer(Ref), All#clients{calls = maps:remove(Client, Calls)}};
perform({release, Client, Name, Permits}, All = #clients{table = Table}) ->
    Key = term(Name, All),
    Release =
        case test_model:is_far(Client) of
            true -> fun() -> canal_lock:release_on(test_nodes:name(Table), Key, #{permits => Permits}) end;
            false when is_tuple(Permits) -> fun() -> apply(canal_lock, release, [Key | tuple_to_list(Permits)]) end;
            false when Permits =:= 1 -> fun() -> canal_lock:release(Key) end;
            false -> fun() -> canal_lock:release(Key, #{permits => Permits}) end
        end,
    {order(Client, All, Release), All};
perform({give, Client, Name, Target, Permits}, All = #clients{dead = Dead, workers = Workers}) ->
    Key = term(Name, All),
    {_, Pid} = maps:get(Target, Workers, {none, Dead}),
    {order(Client, All, fun() -> canal_lock:give(Key, Pid, #{permits => Permits}) end), All};
perform({resize, Name, {MaxPer, Buckets}}, All) ->
    Key = term(Name, All),
    {order(parent, All, fun() -> canal_lock:resize(Key, MaxPer, Buckets) end), All};
perform({die, Client, How}, All = #clients{workers = Workers}) ->
    {Where, Pid} = maps:get(Client, Workers),
    Last =
        case How of
            returns -> fun() -> ok end;
            shuts_down -> fun() -> exit(shutdown) end;
            raises -> fun() -> error(meant) end;
            throws -> fun() -> throw(meant) end;
            kills_itself -> fun() -> exit(self(), kill) end;
            linked -> fun() -> [spawn_link(fun() -> exit(meant) end) | test_setup:hold_forever()] end;
            {acquires, Key, Size} -> acquiring(Client, Key, Size, 0, All);
            _ -> none
        end,
    on(Where, fun() ->
        case How of
            killed -> exit(Pid, kill);
            signalled -> exit(Pid, meant);
            _ -> Pid ! {last_order, Last}
        end,
        test_await:down([Pid])
    end),
    {dead, successor(Client, All)};
perform({start, Kind, MaxPer}, All) ->
    Options = #{keep_on_crash => Kind =:= keeping, sweep_interval_ms => ?NEVER_MS},
    Start = fun() ->
        process_flag(trap_exit, true),
        {ok, _} = canal_lock:start_link(MaxPer, Options),
        %% The first pass of a manager that adopts a table does not count as a sweep.
        canal_lock_manager:sweep(),
        ok
    end,
    {order(parent, All, Start), All};
perform(sweep, All) ->
    {order(parent, All, fun canal_lock_manager:sweep/0), All};
perform(stop, All) ->
    {order(parent, All, fun canal_lock:stop/0), All};
perform({end_manager, How}, All = #clients{table = Table}) ->
    on(Table, fun() ->
        Manager = whereis(canal_lock),
        Monitor = monitor(process, Manager),
        exit(Manager, maps:get(How, #{killed => kill, crashes => meant, shut_down => shutdown})),
        _ = test_await:reason({Manager, Monitor})
    end),
    {ok, All};
perform({disconnect, near}, All = #clients{table = Table, far = Far}) ->
    {test_nodes:cut(Table, Far), All};
perform({disconnect, far}, All = #clients{table = Table, far = Far}) ->
    {test_nodes:cut(Far, Table), All};
perform(connect, All = #clients{table = Table, far = Far}) ->
    {test_nodes:connect(Table, Far), All}.

%% The process that replaces a dead one.
successor(Client, All = #clients{workers = Workers, names = Names, calls = Calls}) ->
    {_, Pid} = maps:get(Client, Workers),
    {Client, Life} = maps:get(Pid, Names),
    start_worker(Client, Life + 1, All#clients{calls = maps:remove(Client, Calls)}).

%% In the simplest form that has the same meaning.
options(Timeout_ms, 1, infinity) -> Timeout_ms;
options(Timeout_ms, Permits, MaxWaiting) -> #{timeout_ms => Timeout_ms, permits => Permits, max_waiting => MaxWaiting}.

acquiring(Client, Name, {MaxPer, Buckets}, Options, All = #clients{table = Table}) ->
    Key = term(Name, All),
    case test_model:is_far(Client) of
        true -> fun() -> canal_lock:acquire_on(test_nodes:name(Table), Key, MaxPer, Buckets, Options) end;
        false -> fun() -> canal_lock:acquire(Key, MaxPer, Buckets, Options) end
    end.

term(Name, #clients{keys = Keys}) ->
    {Name, Term} = lists:keyfind(Name, 1, Keys),
    Term.

%% Only the names of the case: another name may have the same term.
key_name(Term, #clients{keys = Keys}) ->
    hd([Name || {Name, Same} <- Keys, Same =:= Term] ++ [{unknown, Term}]).

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
            {waits, All#clients{calls = Calls#{Client => {Kind, Ref}}, next = Number + 1}};
        false ->
            Kind =:= suspended andalso resume(Client, All),
            {test_await:answer(Ref), All}
    end.

timeout_ms() ->
    case list_to_integer(erlang:system_info(otp_release)) of
        Release when Release >= 28 -> ?PAUSED_TIMEOUT_MS;
        _ -> ?TIMEOUT_MS
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
    test_worker:suspend(Pid).

resume(Client, #clients{workers = Workers}) ->
    {here, Pid} = maps:get(Client, Workers),
    test_worker:resume(Pid).

%% The answers of calls that waited.
-spec returned(clients()) -> {[{client(), test_model:answer()}], clients()}.
returned(All = #clients{calls = Calls}) ->
    Answers = [{Client, Answer} || {Client, {_, Ref}} <- maps:to_list(Calls), {answer, Answer} <- [answered(Ref)]],
    {Answers, All#clients{calls = maps:without([Client || {Client, _} <- Answers], Calls)}}.

answered(Ref) ->
    receive
        {Ref, Answer} -> {answer, Answer}
    after 0 -> none
    end.

on(here, Fun) -> Fun();
on(Node, Fun) -> test_nodes:call(Node, Fun).

%% Calls a function in the process of a client. Returns `dead' if the process dies.
order(Client, #clients{workers = Workers}, Fun) ->
    {Where, Pid} = maps:get(Client, Workers),
    on(Where, fun() ->
        try
            test_worker:order(Pid, fun() -> attempt(Fun) end)
        catch
            error:{died_before_it_answered, _} -> dead
        end
    end).

attempt(Fun) ->
    try
        Fun()
    catch
        error:badarg -> closed;
        %% Of calls to another node.
        exit:{{nodedown, _}, {canal_lock, _, _}} -> nodedown;
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
snapshot(All = #clients{keys = Keys, table = Table, workers = Workers, names = Names, calls = Calls}) ->
    Pids = [{Client, Pid} || {Client, {Where, Pid}} <- maps:to_list(Workers), Client =/= parent, Where =:= Table],
    {Mailboxes, Shown} = on(Table, fun() ->
        Mailboxes = [{Client, element(2, process_info(Pid, messages))} || {Client, Pid} <- Pids],
        {Mailboxes, attempt(fun() -> shown(Keys, maps:keys(Names)) end)}
    end),
    %% A call that runs returns soon if the message that it waits for has arrived.
    Unread = fun(Client, Mail) ->
        case Calls of
            #{Client := {runs, _}} -> [Message || Message = {Of, _} <- Mail, Of =/= call];
            _ -> Mail
        end
    end,
    Mail = maps:from_list([{Client, Unread(Client, named(Messages, All))} || {Client, Messages} <- Mailboxes]),
    case Shown of
        closed ->
            #{table => closed, mail => Mail};
        #{keys := Held, holders := HoldersOf, held := HeldBy} ->
            Name = fun(Pid) -> maps:get(Pid, Names, {unknown, Pid}) end,
            KeyNames = fun(Of) -> lists:sort([{key_name(Key, All), N} || {Key, N} <- Of]) end,
            Shown#{
                table => open,
                mail => Mail,
                keys := KeyNames(Held),
                holders := [{Key, lists:sort([{Name(Pid), N} || {Pid, N} <- Holders])} || {Key, Holders} <- HoldersOf],
                held := lists:sort([{Name(Pid), KeyNames(Of)} || {Pid, Of = [_ | _]} <- HeldBy])
            }
    end.

shown(Keys, Pids) ->
    Each = fun(Of) -> [{Name, Of(Key)} || {Name, Key} <- Keys] end,
    #{
        info => maps:without([memory, barriers_refused, wait_us, longest_wait_us], canal_lock:info()),
        counts => Each(fun canal_lock:count/1),
        buckets => Each(fun(Key) -> canal_lock:buckets(Key, 2) end),
        waiting => Each(fun canal_lock:waiting/1),
        keys => canal_lock:keys(),
        holders => Each(fun canal_lock:holders/1),
        held => [{Pid, canal_lock:held(Pid)} || Pid <- Pids],
        audit => canal_lock:audit()
    }.
