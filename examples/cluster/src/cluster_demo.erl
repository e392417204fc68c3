%% Five members and two clients with quorum locks, in 45 s: locks move from node to node, the network is partitioned, a
%% member and a client are killed and restarted while they hold the lock, a client replaces a member while another one
%% holds the lock, and a holder is suspended for longer than its lease. At the end the demo checks the recorded events.
%% Run it with `make demo WHAT=cluster'.
-module(cluster_demo).

-export([main/0]).

-record(demo, {
    recorder :: cluster_demo_recorder:recorder(),
    %% `Start': how often the node has been started.
    nodes :: #{Name :: atom() => {test_nodes:a_node(), Start :: pos_integer()}}
}).

-define(MEMBERS, [n1, n2, n3, n4, n5]).
%% They lock. The first one has no voter, the other one becomes a member.
-define(CLIENTS, [c1, c2]).
-define(NAMES, ?MEMBERS ++ ?CLIENTS).
-define(NODE_ARGUMENTS, ["-kernel", "logger_level", "error", "+S", "2:2", "+sbwt", "none"]).
-define(TURN_MS, 400).
%% Long enough to suspend the node during it.
-define(DELAY_MS, 2000).
%% A quarter of the default, so that the demo takes 45 s.
-define(LEASE_MS, 2500).
%% Limits a wait that hangs. A wait normally takes at most a lease, a restart and a few turns.
-define(AWAIT_MS, 20_000).

-spec main() -> no_return().
main() ->
    cluster_demo_stage:main(fun run/0, fun cluster_demo_verdict:lines/1).

run() ->
    ok = canal_lock_quorum_nif:load(),
    lists:foreach(fun cluster_demo_screen:say/1, introduction()),
    Recorder = cluster_demo_recorder:start(),
    Nodes = test_await:in_parallel(fun(Name) -> test_nodes:start(Name, ?NODE_ARGUMENTS) end, ?NAMES),
    Demo = #demo{recorder = Recorder, nodes = maps:from_list(lists:zip(?NAMES, [{Node, 1} || Node <- Nodes]))},
    ok = test_nodes:introduce(Nodes),
    lists:foreach(fun(Name) -> start_locks(Name, Demo) end, ?NAMES),
    Acts = [
        fun await_voting/1, fun move/1, fun partition/1, fun kill_member/1, fun kill_client/1, fun replace/1,
        fun suspend/1
    ],
    {Acted, Missing} = cluster_demo_stage:act(Demo, Acts),
    AtRest = at_rest(Acted),
    Verdict = cluster_demo_verdict:judge(cluster_demo_recorder:record(Recorder), AtRest#{missing => Missing}),
    lists:foreach(fun(Name) -> test_nodes:stop(node_of(Name, Acted)) end, ?NAMES),
    Verdict.

introduction() ->
    [
        "Quorum locks on seven nodes of this machine: five members, n1 to n5, and two clients, c1 and c2, which",
        "lock and do not vote. A lock needs the votes of three members.",
        "",
        "All times are a quarter of the defaults, so that the demo takes 45 s. A vote is valid for its holder for",
        io_lib:format("~b ms. The holder gets a message ~b ms before its lock can be lost.", [
            ?LEASE_MS * 4 div 5, ?LEASE_MS * 2 div 5
        ]),
        io_lib:format("A voter keeps its vote for ~b ms.", [?LEASE_MS]),
        "",
        "On each node an actor locks `account', adds one to its number in a register that checks fences, and unlocks.",
        "A second process on each node (\"extra\") locks other names for milliseconds: as writer, as reader, or two",
        "names at once. The demo counts the locks of extras, and shows them only if they fail.",
        "",
        "seconds  node  name               fence                     event"
    ].

%%% Acts

move(Demo) ->
    Since = say("--- locks move from node to node", Demo),
    ok = order(?NAMES, {turns, ?TURN_MS}, Demo),
    await_locks(?NAMES, Since, Demo),
    %% Shows a few more turns.
    ok = timer:sleep(1000),
    Demo.

partition(Demo) ->
    {Few, Many} = {[n1, n2], [n3, n4, n5]},
    Ready = say("--- n1 keeps the lock, and n1 and n2 are then disconnected from the others", Demo),
    ok = order([n1], keep, Demo),
    await("that n1 keeps the lock", is(keeps, [n1]), Ready, Demo),
    %% A vote that was given unasked is short until its holder has confirmed it.
    ok = timer:sleep(?TURN_MS),
    Pairs = [{node_of(One, Demo), node_of(Other, Demo)} || One <- Few, Other <- Many],
    Cut = say("*** n1 n2 | n3 n4 n5: disconnected", Demo),
    lists:foreach(fun({One, Other}) -> test_nodes:separate(One, Other) end, Pairs),
    await("that n1 loses its lock", is(lost, [n1]), Cut, Demo),
    ok = order([n1], {turns, ?TURN_MS}, Demo),
    await("a lock for the others", is(granted, Many), Cut, Demo),
    %% Shows that the others continue.
    ok = timer:sleep(1500),
    lists:foreach(fun({One, Other}) -> test_nodes:introduce([One, Other]) end, Pairs),
    _ = say("*** n1 n2 and n3 n4 n5 can connect again", Demo),
    _ = await_voting(Demo),
    Healed = say("    all voters answer all nodes", Demo),
    await_locks(Few, Healed, Demo),
    Demo.

kill_member(Demo) ->
    kill(n2, "*** n2 restarts without its state", "    n2 has left quarantine and votes", Demo).

kill_client(Demo) ->
    kill(c1, "*** c1 restarts", "    c1 is connected to the members", Demo).

kill(Name, Restarts, IsBack, #demo{recorder = Recorder, nodes = Nodes} = Demo) ->
    Ready = say(["--- ", atom_to_list(Name), " is killed while it holds the lock"], Demo),
    ok = order([Name], keep, Demo),
    await("that the node keeps the lock", is(keeps, [Name]), Ready, Demo),
    #{Name := {Dead, Start}} = Nodes,
    Since = canal_lock_quorum_nif:now(),
    ok = test_nodes:kill(Dead),
    ok = cluster_demo_recorder:note(Recorder, {killed, Name, Start}),
    await("a lock for another node", is(granted, ?NAMES -- [Name]), Since, Demo),
    _ = say(Restarts, Demo),
    Restarted = Demo#demo{nodes = Nodes#{Name := {test_nodes:restart(Dead, ?NODE_ARGUMENTS), Start + 1}}},
    ok = test_nodes:introduce(all(Restarted)),
    start_locks(Name, Restarted),
    _ = await_voting(Restarted),
    Back = say(IsBack, Restarted),
    ok = order([Name], {turns, ?TURN_MS}, Restarted),
    await_locks([Name], Back, Restarted),
    Restarted.

replace(Demo) ->
    Ready = say("--- c2 replaces the member n5 while n3 holds the lock", Demo),
    ok = order([n3], keep, Demo),
    await("that n3 keeps the lock", is(keeps, [n3]), Ready, Demo),
    Members = test_quorum_cluster:members([node_of(Name, Demo) || Name <- (?MEMBERS -- [n5]) ++ [c2]]),
    case test_nodes:call(node_of(n1, Demo), fun() -> canal_lock_quorum:change_members(Members) end) of
        {ok, _} -> ok;
        {error, _} -> throw({missing, "the change of the members"})
    end,
    Changed = say("*** n1 to n4 and c2 are the members now, and n5 is a client", Demo),
    _ = await_voting(Demo),
    none = cluster_demo_recorder:await(Demo#demo.recorder, Ready, is(lost, [n3]), 0),
    ok = order([n3], {turns, ?TURN_MS}, Demo),
    await_locks([n3, n5, c2], Changed, Demo),
    Demo.

suspend(Demo) ->
    Ready = say("--- n4 is suspended between the check of its lock and the write", Demo),
    ok = order([n4], {delay, ?DELAY_MS}, Demo),
    await("that n4 checks its lock", is(delays, [n4]), Ready, Demo),
    Suspension = test_nodes:suspend(node_of(n4, Demo)),
    try
        Suspended = say("*** n4 is suspended (kill -STOP)", Demo),
        await("a write of another node", fun is_write_of_another/1, Suspended, Demo)
    after
        ok = test_nodes:resume(Suspension)
    end,
    Resumed = say("*** n4 is resumed (kill -CONT) and still treats its lock as held", Demo),
    await("that n4 loses its lock", is(lost, [n4]), Resumed, Demo),
    ok = order([n4], {turns, ?TURN_MS}, Demo),
    await_locks([n4], Resumed, Demo),
    Demo.

%% The state that remains after all clients have unlocked. Waits up to ?AWAIT_MS until all voters and agents are empty.
at_rest(#demo{nodes = Nodes} = Demo) ->
    Since = say("--- all clients unlock and rest", Demo),
    ok = order(?NAMES, rest, Demo),
    Clients = [{Name, Start, Role} || {Name, {_, Start}} <- maps:to_list(Nodes), Role <- [actor, extra]],
    Rests = fun(Client) -> fun({_, Who, Type}) -> {Who, Type} =:= {Client, rests} end end,
    _ = [cluster_demo_recorder:await(Demo#demo.recorder, Since, Rests(Client), ?AWAIT_MS) || Client <- Clients],
    States = test_await:last_value(
        [{Name, cluster_demo_verdict:empty(Name)} || Name <- ?NAMES],
        fun() -> [{Name, test_quorum_cluster:state(node_of(Name, Demo))} || Name <- ?NAMES] end,
        ?AWAIT_MS
    ),
    {Locks, Silent} = test_nodes:call(node_of(n1, Demo), fun canal_lock_quorum:locks/0),
    _ = say("--- the end", Demo),
    #{nodes => States, locks => Locks, silent => Silent}.

%%% Nodes

all(#demo{nodes = Nodes}) ->
    [Node || {Node, _} <- maps:values(Nodes)].

node_of(Name, #demo{nodes = Nodes}) ->
    {Node, _} = maps:get(Name, Nodes),
    Node.

start_locks(Name, #demo{recorder = Recorder, nodes = Nodes} = Demo) ->
    {Node, Start} = maps:get(Name, Nodes),
    Options = (options(Name))#{
        members => test_quorum_cluster:members([node_of(Member, Demo) || Member <- ?MEMBERS]),
        lease_ms => ?LEASE_MS,
        reconnect_ms => 200
    },
    ok = test_quorum_cluster:start(Node, Options),
    test_nodes:call(Node, fun() -> cluster_demo_client:start({Name, Start}, Recorder) end).

options(c1) -> #{voter => false};
options(_) -> #{}.

await_voting(Demo) ->
    try
        ok = test_quorum_cluster:await_voting(all(Demo)),
        Demo
    catch
        error:_ -> throw({missing, "votes of all nodes"})
    end.

order(Names, Order, Demo) ->
    lists:foreach(fun(Name) -> cluster_demo_client:order(node_of(Name, Demo), Order) end, Names).

%%% Events

%% Prints the text. Returns the time.
say(Text, #demo{recorder = Recorder}) ->
    Now = canal_lock_quorum_nif:now(),
    ok = cluster_demo_recorder:note(Recorder, {said, Text}),
    Now.

await_locks(Names, Since, Demo) ->
    lists:foreach(fun(Name) -> await(["a lock for ", atom_to_list(Name)], is(granted, [Name]), Since, Demo) end, Names).

await(What, Is, Since, #demo{recorder = Recorder}) ->
    case cluster_demo_recorder:await(Recorder, Since, Is, ?AWAIT_MS) of
        none -> throw({missing, What});
        _Event -> ok
    end.

%% An event of an actor of these nodes.
is(Wanted, Names) ->
    fun
        ({_, {Node, _, actor}, {Type, _}}) -> Type =:= Wanted andalso lists:member(Node, Names);
        (_) -> false
    end.

is_write_of_another({_, {Node, _, actor}, {{write, _, _, _}, _, {ok, _}, _}}) -> Node =/= n4;
is_write_of_another(_) -> false.
