%% Five nodes with locks between them, in half a minute: locks that move, a partition, a killed holder and its
%% restart, a holder that is paused too long. Ends with the verdict on what the clients have seen. Run it by `make
%% demo-cluster'.
-module(cluster_demo).

-export([main/0, state_here/0, start_here/1]).

-record(demo, {
    book :: cluster_demo_book:book(),
    members :: [node()],
    nodes :: #{atom() => cluster_demo_nodes:a_node()}
}).

-define(NAMES, [n1, n2, n3, n4, n5]).
-define(TURN_MS, 400).
%% Long enough to be paused in it.
-define(DAWDLE_MS, 2000).
%% A net for what hangs: nothing here takes more than a lease, a restart and a few turns.
-define(AWAIT_MS, 20_000).
-define(POLL_MS, 50).

%% A quarter of what clusters run with, so that it fits into half a minute.
rules() ->
    #{
        heartbeat_ms => 500,
        holder_lease_ms => 2000,
        voter_lease_ms => 2500,
        quarantine_ms => 2500,
        attempt_ms => 250,
        retry_most_ms => 250,
        wait_ms => 750,
        keep_ms => 50,
        at_risk_ms => 1000
    }.

-spec main() -> no_return().
main() ->
    %% Who ends it has no verdict, and no status that says that there was one.
    ok = os:set_signal(sigterm, default),
    %% Whatever of it crashes ends all of it, nodes too.
    Main = self(),
    {_, Monitor} = spawn_monitor(fun() -> Main ! {verdict, run()} end),
    receive
        {verdict, #{broken := Broken} = Verdict} ->
            lists:foreach(fun cluster_demo_screen:say/1, ["" | cluster_demo_verdict:lines(Verdict)]),
            halt(case Broken of [] -> 0; _ -> 1 end);
        {'DOWN', Monitor, process, _, Reason} ->
            cluster_demo_screen:say(io_lib:format("The demo has crashed: ~tp", [Reason])),
            halt(1)
    end.

run() ->
    ok = canal_lock_quorum_nif:load(),
    lists:foreach(fun cluster_demo_screen:say/1, introduction()),
    Book = cluster_demo_book:start(),
    Nodes = maps:from_list([{Name, cluster_demo_nodes:start(Name, 1)} || Name <- ?NAMES]),
    Members = [Node || #{node := Node} <- maps:values(Nodes)],
    Demo = #demo{book = Book, members = Members, nodes = Nodes},
    _ = [cluster_demo_nodes:introduce(One, Other) || One <- all(Demo), Other <- all(Demo), One < Other],
    _ = [start_locks(Node, Demo) || Node <- all(Demo)],
    ok = await_quorum(?NAMES, Demo),
    {Acted, InVain} = act(Demo, [fun move/1, fun part/1, fun kill/1, fun pause/1]),
    AtRest = at_rest(Acted),
    Verdict = cluster_demo_verdict:judge(cluster_demo_book:record(Book), AtRest#{in_vain => InVain}),
    _ = [cluster_demo_nodes:stop(Node) || Node <- all(Acted)],
    Verdict.

introduction() ->
    #{holder_lease_ms := Holder_ms, at_risk_ms := AtRisk_ms, voter_lease_ms := Voter_ms} = rules(),
    [
        "Quorum locks of five nodes, n1 to n5, which are processes of this machine. Three votes of five are a lock.",
        "",
        "So that it fits into half a minute, times are a quarter of the default ones: a holder counts on a vote for",
        io_lib:format("~b ms, and hears that it is at risk when ~b ms are left; a voter keeps the vote for ~b ms.", [
            Holder_ms, AtRisk_ms, Voter_ms
        ]),
        "",
        "On each node an actor locks `account', adds one to its number in a register, which looks at fences, and",
        "gives the lock back. An extra locks shelves for milliseconds, also as a reader, also two at once; what it",
        "does is counted, and shown if there is trouble.",
        "",
        "seconds  node  name               fence                    what"
    ].

%% One after the other. What was waited for in vain ends it.
act(Demo, []) ->
    {Demo, []};
act(Demo, [Act | Acts]) ->
    try Act(Demo) of
        Next -> act(Next, Acts)
    catch
        throw:{in_vain, What} -> {Demo, [What]}
    end.

%%% Acts

move(Demo) ->
    Since = say("--- locks move from node to node", Demo),
    ok = order(?NAMES, {turns, ?TURN_MS}, Demo),
    _ = [await({"a lock for ~ts", [Name]}, is(granted, [Name]), Since, Demo) || Name <- ?NAMES],
    ok = timer:sleep(1000),
    Demo.

part(Demo) ->
    {Few, Many} = {[n1, n2], [n3, n4, n5]},
    Ready = say("--- n1 is going to keep the lock while it is cut off together with n2", Demo),
    ok = order([n1], keep, Demo),
    _ = await({"n1 to hold", []}, is(keeps, [n1]), Ready, Demo),
    Cut = say("*** n1 n2 | n3 n4 n5: cut", Demo),
    _ = [cluster_demo_nodes:cut(node_of(One, Demo), node_of(Other, Demo)) || One <- Few, Other <- Many],
    _ = await({"n1 to lose its lock", []}, is(lost, [n1]), Cut, Demo),
    ok = order([n1], {turns, ?TURN_MS}, Demo),
    _ = await({"the others to have it", []}, is(granted, Many), Cut, Demo),
    ok = timer:sleep(1500),
    _ = [cluster_demo_nodes:introduce(node_of(One, Demo), node_of(Other, Demo)) || One <- Few, Other <- Many],
    _ = say("*** n1 n2 and n3 n4 n5 can reach each other again", Demo),
    ok = await_quorum(?NAMES, Demo),
    Healed = say("    all nodes hear all voters", Demo),
    _ = [await({"a lock for ~ts", [Name]}, is(granted, [Name]), Healed, Demo) || Name <- Few],
    Demo.

kill(#demo{book = Book, nodes = Nodes, members = Members} = Demo) ->
    Ready = say("--- n2 is going to be killed while it holds", Demo),
    ok = order([n2], keep, Demo),
    _ = await({"n2 to hold", []}, is(keeps, [n2]), Ready, Demo),
    Dead = #{life := Life} = node_of(n2, Demo),
    Since = canal_lock_quorum_nif:now(),
    ok = cluster_demo_nodes:kill(Dead),
    ok = cluster_demo_book:note(Book, {killed, n2, Life}),
    _ = await({"another one to have the lock", []}, is(granted, ?NAMES -- [n2]), Since, Demo),
    _ = say("*** n2 is started again, and remembers nothing", Demo),
    Node = cluster_demo_nodes:start(n2, Life + 1),
    Restarted = Demo#demo{nodes = Nodes#{n2 := Node}, members = Members},
    _ = [cluster_demo_nodes:introduce(Node, Other) || Other <- all(Restarted), Other =/= Node],
    ok = start_locks(Node, Restarted),
    ok = await_quorum(?NAMES, Restarted),
    Votes = say("    n2 has heard what is held, and votes", Restarted),
    ok = order([n2], {turns, ?TURN_MS}, Restarted),
    _ = await({"a lock for n2", []}, is(granted, [n2]), Votes, Restarted),
    Restarted.

pause(Demo) ->
    Ready = say("--- n4 is going to be paused between looking at its lock and writing", Demo),
    ok = order([n4], {dawdle, ?DAWDLE_MS}, Demo),
    _ = await({"n4 to look", []}, is(dawdles, [n4]), Ready, Demo),
    Pause = cluster_demo_nodes:pause(node_of(n4, Demo)),
    try
        Paused = say("*** n4 is paused (kill -STOP)", Demo),
        _ = await({"another one to write", []}, fun is_write/1, Paused, Demo),
        ok
    after
        ok = cluster_demo_nodes:resume(Pause)
    end,
    Resumed = say("*** n4 goes on (kill -CONT), and knows of nothing", Demo),
    _ = await({"n4 to lose its lock", []}, is(lost, [n4]), Resumed, Demo),
    ok = order([n4], {turns, ?TURN_MS}, Demo),
    _ = await({"a lock for n4", []}, is(granted, [n4]), Resumed, Demo),
    Demo.

%% What is left when nobody wants anything any more, and members have had the time to forget.
at_rest(#demo{nodes = Nodes} = Demo) ->
    Since = say("--- everybody gives back, and rests", Demo),
    ok = order(?NAMES, rest, Demo),
    Rests = fun(Client) -> fun({_, Who, What}) -> {Who, What} =:= {Client, rests} end end,
    _ = [
        cluster_demo_book:await(Demo#demo.book, Since, Rests(Client), ?AWAIT_MS)
     || #{name := Name, life := Life} <- all(Demo), Role <- [actor, extra], Client <- [{Name, Life, Role}]
    ],
    Deadline_ms = erlang:monotonic_time(millisecond) + ?AWAIT_MS,
    States = at_rest_by(Deadline_ms, Demo),
    {Locks, Silent} = cluster_demo_nodes:call(maps:get(n1, Nodes), canal_lock_quorum, locks, []),
    _ = say("--- nothing is left to wait for", Demo),
    #{nodes => States, locks => Locks, silent => Silent}.

%% Whatever they are then; the verdict says what is wrong with it.
at_rest_by(Deadline_ms, Demo) ->
    States = [{Name, state(Node)} || #{name := Name} = Node <- all(Demo)],
    IsEmpty = lists:all(fun cluster_demo_verdict:is_empty/1, States),
    case IsEmpty orelse erlang:monotonic_time(millisecond) > Deadline_ms of
        true ->
            States;
        false ->
            ok = timer:sleep(?POLL_MS),
            at_rest_by(Deadline_ms, Demo)
    end.

%%% Nodes

all(#demo{nodes = Nodes}) ->
    maps:values(Nodes).

node_of(Name, #demo{nodes = Nodes}) ->
    maps:get(Name, Nodes).

start_locks(#{name := Name, life := Life} = Node, #demo{book = Book, members = Members}) ->
    Options = #{members => Members, rules => rules(), reconnect_ms => 200},
    ok = cluster_demo_nodes:call(Node, ?MODULE, start_here, [Options]),
    cluster_demo_nodes:call(Node, cluster_demo_client, start, [{Name, Life}, cluster_demo_book:port(Book)]).

%% On the node. The process that calls this is none that stays.
-spec start_here(canal_lock_quorum:options()) -> ok.
start_here(Options) ->
    {ok, Supervisor} = canal_lock_quorum:start_link(Options),
    true = unlink(Supervisor),
    ok.

state(Node) ->
    cluster_demo_nodes:call(Node, ?MODULE, state_here, []).

%% On the node: by its status, and of its voter what the status does not tell, whether it keeps a vote or a place in a
%% line for anybody.
-spec state_here() -> #{atom() => term()}.
state_here() ->
    #{members := Members} = Status = canal_lock_quorum:status(),
    #{empty := IsEmpty} = canal_lock_quorum_voter:state(),
    Numbers = maps:with([voting, held, waiting, pending_unlocks], Status),
    Numbers#{answering => length([Node || #{node := Node, answers := true} <- Members]), voter_empty => IsEmpty}.

%% All of them vote, and hear all voters.
await_quorum(Names, Demo) ->
    await_quorum(erlang:monotonic_time(millisecond) + ?AWAIT_MS, Names, Demo).

await_quorum(Deadline_ms, Names, Demo) ->
    Ready = [
        Name
     || Name <- Names,
        #{answering := 5, voting := true} <- [state(node_of(Name, Demo))]
    ],
    case erlang:monotonic_time(millisecond) > Deadline_ms of
        _ when Ready =:= Names ->
            ok;
        true ->
            throw({in_vain, "nodes to hear each other"});
        false ->
            ok = timer:sleep(?POLL_MS),
            await_quorum(Deadline_ms, Names, Demo)
    end.

order(Names, Order, Demo) ->
    _ = [ok = cluster_demo_client:order(node_of(Name, Demo), Order) || Name <- Names],
    ok.

%%% What happens

%% When it was said.
say(Text, #demo{book = Book}) ->
    Now = canal_lock_quorum_nif:now(),
    ok = cluster_demo_book:note(Book, {said, Text}),
    Now.

await({Format, Arguments}, Is, Since, #demo{book = Book}) ->
    case cluster_demo_book:await(Book, Since, Is, ?AWAIT_MS) of
        none -> throw({in_vain, io_lib:format(Format, Arguments)});
        Event -> Event
    end.

%% By an actor of these nodes.
is(Wanted, Names) ->
    fun
        ({_, {Node, _, actor}, {What, _}}) -> What =:= Wanted andalso lists:member(Node, Names);
        (_) -> false
    end.

is_write({_, {Node, _, actor}, {{write, _, _, _}, _, {ok, _}, _}}) -> Node =/= n4;
is_write(_) -> false.
