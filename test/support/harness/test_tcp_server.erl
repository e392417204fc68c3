%% Accepts connections, and serves each one in its own process. All its processes are linked to the caller.
-module(test_tcp_server).

-export([start/2]).

-spec start([gen_tcp:listen_option()], Serve :: fun((gen_tcp:socket()) -> term())) -> gen_tcp:socket().
start(Options, Serve) ->
    {ok, Listener} = gen_tcp:listen(0, [binary, {active, false}, {backlog, 256} | Options]),
    hand_over(Listener, fun() -> accept(Listener, Serve) end),
    Listener.

accept(Listener, Serve) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    hand_over(Socket, fun() -> Serve(Socket) end),
    accept(Listener, Serve).

hand_over(Socket, Run) ->
    Pid = spawn_link(fun() -> receive go -> Run() end end),
    ok = gen_tcp:controlling_process(Socket, Pid),
    Pid ! go.
