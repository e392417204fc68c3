%% Nodes with faults: VMs of this machine that are cut from each other, stopped, killed and started again, whose
%% processes are ended and whose clocks are set, as a test wants it.
%%
%% A place is a number, 1 and up; the node there has the same name in each of its lives. Nodes are asked over their
%% standard input and output, so a test never loses hold of one. Where network namespaces can be made each has its own
%% (test_network); elsewhere, or if a test wants to hold a message back for longer than TCP would, they call
%% each other through wires that can (test_slow_links). A cut is the same to them: nothing comes, nothing is
%% closed, and what was sent comes later.
-module(test_quorum_lab).

-export([start/1, stop/1, kind/0, kind/1, places/1, names/1, name/2, folder/1, call/3, call/4]).
-export([cut/3, cut_one_way/3, heal/3, heal_one_way/3, isolate/2, heal_all/1, held/3, slow/3, fast/2]).
-export([freeze/2, thaw/2, kill/2, restart/2, alive/2, disconnect/3, set_clock/3]).

-export_type([lab/0, place/0]).

-type place() :: pos_integer().
-type kind() :: namespaces | wires.
-opaque lab() :: #{
    count := pos_integer(),
    kind := kind(),
    net := test_network:net() | test_slow_links:wires(),
    folder := file:filename(),
    prefix := string(),
    clocks := boolean(),
    arguments := [string()],
    state := ets:table()
}.

%% In its own namespace each node has this one for itself.
-define(PORT, 4370).

%% Nets for what hangs.
-define(CALL_MS, 60_000).
-define(BOOT_MS, 60_000).

%% `clocks': whether they can be set. `arguments': of each node. What it says of a node's files is in `folder/1'.
-spec start(#{nodes := pos_integer(), kind => kind(), clocks => boolean(), arguments => [string()]}) -> lab().
start(Options = #{nodes := Count}) ->
    Folder = new_folder(),
    Kind = maps:get(kind, Options, kind()),
    Clocks = maps:get(clocks, Options, false),
    ok = make_clocks(Clocks, Folder),
    Lab = #{
        count => Count,
        kind => Kind,
        net => build(Kind, Count),
        folder => Folder,
        prefix => "canal_lock_" ++ os:getpid() ++ "_" ++ integer_to_list(erlang:unique_integer([positive])) ++ "_",
        clocks => Clocks,
        arguments => maps:get(arguments, Options, []),
        state => ets:new(?MODULE, [public])
    },
    restart(Lab, places(Lab)),
    Lab.

build(namespaces, Count) -> test_network:build(Count);
build(wires, _) -> test_slow_links:start().

make_clocks(false, _) -> ok;
make_clocks(true, Folder) -> test_quorum_clock:make(Folder).

-spec stop(lab()) -> ok.
stop(Lab = #{kind := Kind, net := Net, folder := Folder, state := State}) ->
    %% Without asking: a node may be stopped.
    [kill(Lab, Place) || Place <- places(Lab), alive(Lab, Place)],
    case Kind of
        namespaces -> test_network:remove(Net);
        wires -> test_slow_links:stop(Net)
    end,
    true = ets:delete(State),
    ok = file:del_dir_r(Folder).

%% Of the networks that this machine can have, the one that is nearer to a real one.
-spec kind() -> kind().
kind() ->
    case test_network:possible() of
        true -> namespaces;
        {false, _} -> wires
    end.

-spec kind(lab()) -> kind().
kind(#{kind := Kind}) ->
    Kind.

-spec places(lab()) -> [place()].
places(#{count := Count}) ->
    lists:seq(1, Count).

-spec names(lab()) -> [node()].
names(Lab) ->
    [name(Lab, Place) || Place <- places(Lab)].

-spec name(lab(), place()) -> node().
name(Lab = #{prefix := Prefix}, Place) ->
    list_to_atom(lists:concat([Prefix, Place, "@", host(Lab, Place)])).

host(#{kind := namespaces}, Place) -> test_network:address(Place);
host(#{kind := wires}, _) -> "127.0.0.1".

%% Gone with the laboratory.
-spec folder(lab()) -> file:filename().
folder(#{folder := Folder}) ->
    Folder.

%% On the node, by a process that ends with it.
-spec call(lab(), place(), fun(() -> Answer)) -> Answer.
call(Lab, Place, Fun) ->
    call(Lab, Place, Fun, ?CALL_MS).

-spec call(lab(), place(), fun(() -> Answer), Within_ms :: pos_integer()) -> Answer.
call(Lab, Place, Fun, Within_ms) ->
    {Peer, _} = life(Lab, Place),
    peer:call(Peer, erlang, apply, [Fun, []], Within_ms).

%% Both directions.
-spec cut(lab(), place(), place()) -> ok.
cut(Lab, One, Other) ->
    cut_one_way(Lab, One, Other),
    cut_one_way(Lab, Other, One).

%% What the one sends does not reach the other; what the other sends reaches the one. Once more is no difference.
-spec cut_one_way(lab(), From :: place(), To :: place()) -> ok.
cut_one_way(#{kind := Kind, net := Net, state := State}, From, To) ->
    case ets:insert_new(State, {{cut, From, To}}) of
        true when Kind =:= namespaces -> test_network:drop(Net, From, To);
        true -> test_slow_links:hold(Net, From, To);
        false -> ok
    end.

-spec heal(lab(), place(), place()) -> ok.
heal(Lab, One, Other) ->
    heal_one_way(Lab, One, Other),
    heal_one_way(Lab, Other, One).

-spec heal_one_way(lab(), From :: place(), To :: place()) -> ok.
heal_one_way(#{kind := Kind, net := Net, state := State}, From, To) ->
    case ets:take(State, {cut, From, To}) of
        [_] when Kind =:= namespaces -> test_network:pass(Net, From, To);
        [_] -> test_slow_links:let_go(Net, From, To);
        [] -> ok
    end.

%% From all others.
-spec isolate(lab(), place()) -> ok.
isolate(Lab, Place) ->
    lists:foreach(fun(Other) -> cut(Lab, Place, Other) end, places(Lab) -- [Place]).

-spec heal_all(lab()) -> ok.
heal_all(Lab = #{state := State}) ->
    Cuts = ets:select(State, [{{{cut, '$1', '$2'}}, [], [{{'$1', '$2'}}]}]),
    lists:foreach(fun({From, To}) -> heal_one_way(Lab, From, To) end, Cuts).

%% Bytes on the wire that wait for `heal/3'. Known of wires only.
-spec held(lab(), From :: place(), To :: place()) -> non_neg_integer().
held(#{kind := wires, net := Wires}, From, To) ->
    test_slow_links:held(Wires, From, To).

%% In namespaces only: what it sends goes no faster than this.
-spec slow(lab(), place(), Megabits :: pos_integer()) -> ok.
slow(#{kind := namespaces, net := Net}, Place, Megabits) ->
    test_network:slow(Net, Place, Megabits).

-spec fast(lab(), place()) -> ok.
fast(#{kind := namespaces, net := Net}, Place) ->
    test_network:fast(Net, Place).

%% The operating system gives it no time any more.
-spec freeze(lab(), place()) -> ok.
freeze(Lab, Place) ->
    signal(Lab, Place, "STOP").

-spec thaw(lab(), place()) -> ok.
thaw(Lab, Place) ->
    signal(Lab, Place, "CONT").

%% The operating system ends it, without any last words, stopped or not.
-spec kill(lab(), place()) -> ok.
kill(Lab, Place) ->
    {Peer, _} = life(Lab, Place),
    Monitor = monitor(process, Peer),
    signal(Lab, Place, "KILL"),
    _ = test_await:reason({Peer, Monitor}),
    ok.

signal(Lab, Place, Signal) ->
    {_, Process} = life(Lab, Place),
    [] = os:cmd("kill -" ++ Signal ++ " " ++ Process),
    ok.

%% A life more, of nodes that are dead, all at once: the same names, files and addresses.
-spec restart(lab(), place() | [place()]) -> ok.
restart(Lab, Place) when is_integer(Place) ->
    restart(Lab, [Place]);
restart(Lab = #{state := State}, Places) ->
    Booting = [boot(Lab, Place) || Place <- Places],
    [
        receive
            {Tag, {started, _, Peer}} ->
                Process = peer:call(Peer, os, getpid, [], ?CALL_MS),
                true = ets:insert(State, {{life, Place}, Peer, Process}),
                introduce(Lab, Place)
        after ?BOOT_MS -> error({does_not_start, Place})
        end
     || {Place, Tag} <- Booting
    ],
    ok.

boot(Lab = #{arguments := Arguments, prefix := Prefix}, Place) ->
    Tag = make_ref(),
    Paths = [Path || Path <- code:get_path(), filelib:is_dir(Path)],
    {ok, _, _} = peer:start(
        maps:merge(there(Lab, Place), #{
            name => list_to_atom(lists:concat([Prefix, Place])),
            host => host(Lab, Place),
            longnames => true,
            connection => standard_io,
            wait_boot => {self(), Tag},
            env => environment(Lab, Place),
            args =>
                ["-setcookie", "canal_lock", "-kernel", "logger_level", "none", "-pa" | Paths] ++
                    distribution(Lab) ++ Arguments
        })
    ),
    {Place, Tag}.

there(#{kind := namespaces, net := Net}, Place) ->
    {Program, Arguments} = test_network:inside(Net, Place),
    #{exec => {Program, Arguments ++ [filename:join(os:getenv("BINDIR"), "erlexec")]}};
there(#{kind := wires}, _) ->
    #{}.

%% In namespaces by the addresses in the names, and a port that all have agreed on; on wires the nodes are told.
distribution(#{kind := namespaces}) ->
    Port = integer_to_list(?PORT),
    ["-start_epmd", "false", "-erl_epmd_port", Port, "-kernel", "inet_dist_listen_min", Port] ++
        ["-kernel", "inet_dist_listen_max", Port];
distribution(#{kind := wires}) ->
    test_epmd:arguments().

introduce(#{kind := namespaces}, _) ->
    ok;
introduce(Lab = #{kind := wires, net := Wires}, Place) ->
    ok = test_slow_links:lead_to(Wires, Place, call(Lab, Place, fun test_epmd:port/0)),
    Others = [
        {name(Lab, Other), test_slow_links:port(Wires, Place, Other)}
     || Other <- places(Lab), Other =/= Place
    ],
    call(Lab, Place, fun() -> lists:foreach(fun({Name, Port}) -> test_epmd:tell(Name, Port) end, Others) end).

environment(#{clocks := false}, _) ->
    [];
environment(Lab = #{clocks := true, folder := Folder}, Place) ->
    File = clock(Lab, Place),
    filelib:is_file(File) orelse test_quorum_clock:set(File, 0),
    test_quorum_clock:environment(Folder, File).

-spec alive(lab(), place()) -> boolean().
alive(Lab, Place) ->
    {Peer, _} = life(Lab, Place),
    is_process_alive(Peer).

life(#{state := State}, Place) ->
    [{_, Peer, Process}] = ets:lookup(State, {life, Place}),
    {Peer, Process}.

%% The connection is closed by one of them, as if by hand.
-spec disconnect(lab(), place(), place()) -> boolean().
disconnect(Lab, One, Other) ->
    Name = name(Lab, Other),
    true =:= call(Lab, One, fun() -> erlang:disconnect_node(Name) end).

%% The node's wall clock is wrong by so much from now on.
-spec set_clock(lab(), place(), Wrong_ms :: integer()) -> ok.
set_clock(Lab = #{clocks := true}, Place, Wrong_ms) ->
    test_quorum_clock:set(clock(Lab, Place), Wrong_ms).

clock(#{folder := Folder}, Place) ->
    filename:join(Folder, lists:concat(["clock_", Place])).

new_folder() ->
    Parent = os:getenv("TMPDIR", "/tmp"),
    Name = lists:concat(["canal_lock_lab_", os:getpid(), "_", erlang:unique_integer([positive])]),
    Folder = filename:join(Parent, Name),
    ok = file:make_dir(Folder),
    Folder.
