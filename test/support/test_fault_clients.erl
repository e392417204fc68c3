%% The processes of a node that use something while a test causes faults, and the one that starts and ends them.
-module(test_fault_clients).

-export([start/4, stop/1]).

-define(STOP_MS, 100_000).

%% Starts a process of this name, and with `New' a linked client of each kind. Clients that die on purpose are replaced.
%% `AtEnd': what the process does when all clients have ended.
-spec start(Name :: atom(), [Kind], New :: fun((Kind) -> pid()), AtEnd :: fun(() -> ok)) -> ok.
start(Name, Kinds, New, AtEnd) ->
    Caller = self(),
    Ref = make_ref(),
    _ = spawn(fun() ->
        true = register(Name, self()),
        process_flag(trap_exit, true),
        Clients = maps:from_list([{New(Kind), Kind} || Kind <- Kinds]),
        Caller ! {Ref, ok},
        supervise(Clients, New, AtEnd)
    end),
    test_await:answer(Ref).

supervise(Clients, New, AtEnd) ->
    receive
        {'EXIT', Client, died_on_purpose} ->
            {Kind, Others} = maps:take(Client, Clients),
            supervise(Others#{New(Kind) => Kind}, New, AtEnd);
        {stop, From, Ref} ->
            [Client ! stop || Client <- maps:keys(Clients)],
            [receive {'EXIT', Client, Reason} -> ended(Reason) end || Client <- maps:keys(Clients)],
            ok = AtEnd(),
            From ! {Ref, ok}
    end.

ended(normal) -> ok;
ended(died_on_purpose) -> ok.

%% When this returns all clients of this node have ended.
-spec stop(Name :: atom()) -> ok.
stop(Name) ->
    Ref = monitor(process, Name),
    Name ! {stop, self(), Ref},
    receive
        {Ref, ok} -> ok;
        {'DOWN', Ref, process, _, Reason} -> error({clients_died, Reason})
    after ?STOP_MS -> error(clients_do_not_end)
    end.
