%% A network for nodes of one machine: each has a network namespace of its own, and a wire to a router, which is a
%% namespace too. What the router is told to drop is gone without a word, in the one direction and not in the other,
%% as with a cable that is half broken; TCP sends it again, and again, until it comes through or gives up.
%%
%%     10.77.1.1   10.77.2.1   10.77.3.1
%%        |           |           |            veth
%%     ------------- router -------------      ip rule add from 10.77.1.1 to 10.77.3.1 blackhole
%%
%% Routing rules do what else nft would have to be installed for. Nothing of this is seen outside of the namespaces,
%% so several such networks do not disturb each other. It takes root; test_slow_links does without.
-module(test_network).

-export([possible/0, mends_soon/0, build/1, remove/1, address/1, inside/2, drop/3, pass/3, slow/3, fast/2]).

-export_type([net/0, place/0, why/0]).

-opaque net() :: {Prefix :: string(), Count :: pos_integer()}.
-type place() :: pos_integer().

%% Why this machine cannot do it: as test_setup:skipped/2 takes it.
-type why() :: {missing | impossible, string()}.

-define(PREFIX, "canal_lock_").

%% What a wire that is slow holds back at most before it drops, and lets through at once.
-define(QUEUE_MS, 2000).
-define(BURST, "64kb").

-spec possible() -> true | {false, why()}.
possible() ->
    case {os:type(), os:find_executable("ip")} of
        {{unix, linux}, false} -> {false, {missing, "there is no ip (of iproute2)"}};
        {_, false} -> {false, {impossible, "network namespaces are Linux's"}};
        {_, Ip} -> try_one(Ip)
    end.

try_one(Ip) ->
    Net = ?PREFIX ++ os:getpid() ++ "_try",
    Made = run(Ip, ["netns", "add", Net]),
    Ruled = run(Ip, ["-n", Net, "rule", "add", "to", address(1), "blackhole"]),
    _ = run(Ip, ["netns", "delete", Net]),
    case [Said || {Status, Said} <- [Made, Ruled], Status =/= 0] of
        [] -> true;
        [Said | _] -> {false, {impossible, "network namespaces cannot be made here: " ++ string:trim(Said)}}
    end.

%% With which arguments nodes have TCP send again each second what is not acknowledged, where it can: those that the
%% page gives to whoever runs a cluster. A socket option that the system does not know is passed over in silence.
-spec mends_soon() -> {true, Arguments :: [string()]} | {false, why()}.
mends_soon() ->
    {ok, Socket} = gen_tcp:listen(0, [Option = {raw, 6, 44, <<1000:32/native>>}]),
    Has = inet:getopts(Socket, [{raw, 6, 44, 4}]),
    ok = gen_tcp:close(Socket),
    case {os:type(), Has} of
        {{unix, linux}, {ok, [Option]}} -> {true, flags("docs/cluster.md")};
        _ -> {false, {impossible, "TCP_RTO_MAX_MS takes Linux 6.15"}}
    end.

flags(Path) ->
    {ok, Page} = file:read_file(Path),
    Lines = string:lexemes(unicode:characters_to_list(Page), "\n"),
    [_, _] = Flags = [string:lexemes(Line, " ") || Line = "-kernel inet_dist_" ++ _ <- Lines],
    lists:append(Flags).

%% For so many nodes, at the places 1 and up.
-spec build(pos_integer()) -> net().
build(Count) ->
    remove_what_was_left(),
    Net = {?PREFIX ++ os:getpid() ++ "_" ++ integer_to_list(erlang:unique_integer([positive])), Count},
    Router = router(Net),
    ip(["netns", "add", Router]),
    in(Router, ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]),
    [plug_in(Net, Router, Place) || Place <- lists:seq(1, Count)],
    Net.

plug_in(Net, Router, Place) ->
    Space = space(Net, Place),
    Wire = "to" ++ integer_to_list(Place),
    ip(["netns", "add", Space]),
    ip(["-n", Router, "link", "add", Wire, "type", "veth", "peer", "name", "eth0", "netns", Space]),
    ip(["-n", Router, "address", "add", subnet(Place) ++ "254/24", "dev", Wire]),
    ip(["-n", Router, "link", "set", Wire, "up"]),
    ip(["-n", Space, "address", "add", address(Place) ++ "/24", "dev", "eth0"]),
    ip(["-n", Space, "link", "set", "eth0", "up"]),
    ip(["-n", Space, "link", "set", "lo", "up"]),
    ip(["-n", Space, "route", "add", "default", "via", subnet(Place) ++ "254"]).

-spec remove(net()) -> ok.
remove(Net = {_, Count}) ->
    [ip(["netns", "delete", Space]) || Space <- [router(Net) | [space(Net, P) || P <- lists:seq(1, Count)]]],
    ok.

%% By a VM that was killed: its number is in the names, and nobody has it any more.
remove_what_was_left() ->
    {0, Listed} = run(os:find_executable("ip"), ["netns", "list"]),
    [
        ip(["netns", "delete", ?PREFIX ++ Rest])
     || Line <- string:lexemes(Listed, "\n"),
        [?PREFIX ++ Rest | _] <- [string:lexemes(Line, " ")],
        [Owner | _] <- [string:split(Rest, "_")],
        not filelib:is_dir("/proc/" ++ Owner)
    ],
    ok.

-spec address(place()) -> string().
address(Place) ->
    subnet(Place) ++ "1".

%% How to start a program there: it and what comes before its own arguments.
-spec inside(net(), place()) -> {Program :: string(), Arguments :: [string()]}.
inside(Net, Place) ->
    {os:find_executable("ip"), ["netns", "exec", space(Net, Place)]}.

%% Nothing gets from the one to the other any more. The other direction is as it was.
-spec drop(net(), From :: place(), To :: place()) -> ok.
drop(Net, From, To) ->
    rule("add", Net, From, To).

-spec pass(net(), From :: place(), To :: place()) -> ok.
pass(Net, From, To) ->
    rule("del", Net, From, To).

rule(Do, Net, From, To) ->
    ip(["-n", router(Net), "rule", Do, "from", address(From), "to", address(To), "blackhole"]).

%% What this node sends goes at so many megabits a second, all of it in one line.
-spec slow(net(), place(), Megabits :: pos_integer()) -> ok.
slow(Net, Place, Megabits) ->
    Limit = [lists:concat([Megabits, "mbit"]), "burst", ?BURST, "latency", lists:concat([?QUEUE_MS, "ms"])],
    in(space(Net, Place), ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate" | Limit]).

-spec fast(net(), place()) -> ok.
fast(Net, Place) ->
    in(space(Net, Place), ["tc", "qdisc", "delete", "dev", "eth0", "root"]).

router({Prefix, _}) ->
    Prefix ++ "_router".

space({Prefix, _}, Place) ->
    lists:concat([Prefix, "_", Place]).

subnet(Place) ->
    lists:concat(["10.77.", Place, "."]).

in(Space, Command) ->
    ip(["netns", "exec", Space | Command]).

ip(Arguments) ->
    case run(os:find_executable("ip"), Arguments) of
        {0, _} -> ok;
        {Status, Said} -> error({ip, Arguments, Status, Said})
    end.

run(Program, Arguments) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, exit_status, stderr_to_stdout, hide]),
    collect(Port, []).

collect(Port, Said) ->
    receive
        {Port, {data, More}} -> collect(Port, [Said | More]);
        {Port, {exit_status, Status}} -> {Status, lists:flatten(Said)}
    end.
