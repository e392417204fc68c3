%% A network of Linux network namespaces on one machine: one namespace for each node, and one for a router. The router
%% can drop the packets of one direction between two nodes, without an error to either of them. TCP sends them again
%% until they pass, or until it gives up.
%%
%%     10.77.1.1   10.77.2.1   10.77.3.1
%%        |           |           |            veth
%%     ------------- router -------------      ip rule add from 10.77.1.1 to 10.77.3.1 blackhole
%%
%% Routing rules drop the packets, so nft need not be installed. The namespaces isolate the networks from each other and
%% from the machine. They need root; test_slow_links does not.
-module(test_network).

-export([possible/0, mends_soon/0, build/1, remove/1, address/1, inside/2, drop/3, pass/3, slow/3, fast/2]).

-export_type([net/0, index/0, why/0]).

-opaque net() :: {Prefix :: string(), Count :: pos_integer()}.
-type index() :: pos_integer().

%% Why this machine cannot do it, as an argument of test_setup:skipped/2.
-type why() :: {missing | impossible, string()}.

-define(PREFIX, "canal_lock_").

%% A slow wire drops packets that would wait longer than this, and passes a burst of this size without delay.
-define(QUEUE_MS, 2000).
-define(BURST, "64kb").

-spec possible() -> true | {false, why()}.
possible() ->
    case {os:type(), os:find_executable("ip")} of
        {{unix, linux}, false} -> {false, {missing, "the program ip (of iproute2) is not installed"}};
        {_, false} -> {false, {impossible, "only Linux has network namespaces"}};
        {_, Ip} -> try_one(Ip)
    end.

try_one(Ip) ->
    Net = ?PREFIX ++ os:getpid() ++ "_try",
    Made = test_program:run(Ip, ["netns", "add", Net]),
    Ruled = test_program:run(Ip, ["-n", Net, "rule", "add", "to", address(1), "blackhole"]),
    _ = test_program:run(Ip, ["netns", "delete", Net]),
    case [Output || {Status, Output} <- [Made, Ruled], Status =/= 0] of
        [] -> true;
        [Output | _] ->
            Reason = string:trim(binary_to_list(Output)),
            {false, {impossible, "this machine cannot make network namespaces: " ++ Reason}}
    end.

%% The node arguments of docs/operating.md that make TCP send unacknowledged data again each second. A system that does
%% not know this socket option ignores it without an error.
-spec mends_soon() -> {true, Arguments :: [string()]} | {false, why()}.
mends_soon() ->
    Option = {raw, 6, 44, <<1000:32/native>>},
    {ok, Socket} = gen_tcp:listen(0, [Option]),
    Has = inet:getopts(Socket, [{raw, 6, 44, 4}]),
    ok = gen_tcp:close(Socket),
    case {os:type(), Has} of
        {{unix, linux}, {ok, [Option]}} -> {true, flags("docs/operating.md")};
        _ -> {false, {impossible, "TCP_RTO_MAX_MS needs Linux 6.15"}}
    end.

flags(Path) ->
    {ok, Page} = file:read_file(Path),
    Lines = string:lexemes(unicode:characters_to_list(Page), "\n"),
    [_, _] = Flags = [string:lexemes(Line, " ") || Line = "-kernel inet_dist_" ++ _ <- Lines],
    lists:append(Flags).

%% For nodes with the indexes 1 to `Count'.
-spec build(pos_integer()) -> net().
build(Count) ->
    remove_leftovers(),
    Net = {?PREFIX ++ os:getpid() ++ "_" ++ integer_to_list(erlang:unique_integer([positive])), Count},
    Router = router(Net),
    ip(["netns", "add", Router]),
    in(Router, ["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"]),
    [plug_in(Net, Router, Index) || Index <- lists:seq(1, Count)],
    Net.

plug_in(Net, Router, Index) ->
    Space = space(Net, Index),
    Wire = "to" ++ integer_to_list(Index),
    ip(["netns", "add", Space]),
    ip(["-n", Router, "link", "add", Wire, "type", "veth", "peer", "name", "eth0", "netns", Space]),
    ip(["-n", Router, "address", "add", subnet(Index) ++ "254/24", "dev", Wire]),
    ip(["-n", Router, "link", "set", Wire, "up"]),
    ip(["-n", Space, "address", "add", address(Index) ++ "/24", "dev", "eth0"]),
    ip(["-n", Space, "link", "set", "eth0", "up"]),
    ip(["-n", Space, "link", "set", "lo", "up"]),
    ip(["-n", Space, "route", "add", "default", "via", subnet(Index) ++ "254"]).

-spec remove(net()) -> ok.
remove(Net = {_, Count}) ->
    [ip(["netns", "delete", Space]) || Space <- [router(Net) | [space(Net, P) || P <- lists:seq(1, Count)]]],
    ok.

%% Removes the namespaces of VMs that were killed. Their names contain the process number of the VM.
remove_leftovers() ->
    {0, Listed} = test_program:run(os:find_executable("ip"), ["netns", "list"]),
    [
        ip(["netns", "delete", ?PREFIX ++ Rest])
     || Line <- string:lexemes(binary_to_list(Listed), "\n"),
        [?PREFIX ++ Rest | _] <- [string:lexemes(Line, " ")],
        [Owner | _] <- [string:split(Rest, "_")],
        not filelib:is_dir("/proc/" ++ Owner)
    ],
    ok.

-spec address(index()) -> string().
address(Index) ->
    subnet(Index) ++ "1".

%% The program that starts another program in a namespace, and its arguments before those of the other program.
-spec inside(net(), index()) -> {Program :: string(), Arguments :: [string()]}.
inside(Net, Index) ->
    {os:find_executable("ip"), ["netns", "exec", space(Net, Index)]}.

%% Drops the packets of this direction.
-spec drop(net(), From :: index(), To :: index()) -> ok.
drop(Net, From, To) ->
    rule("add", Net, From, To).

-spec pass(net(), From :: index(), To :: index()) -> ok.
pass(Net, From, To) ->
    rule("del", Net, From, To).

rule(Do, Net, From, To) ->
    ip(["-n", router(Net), "rule", Do, "from", address(From), "to", address(To), "blackhole"]).

%% Limits the rate at which this node sends.
-spec slow(net(), index(), Megabits_per_s :: pos_integer()) -> ok.
slow(Net, Index, Megabits_per_s) ->
    Limit = [lists:concat([Megabits_per_s, "mbit"]), "burst", ?BURST, "latency", lists:concat([?QUEUE_MS, "ms"])],
    in(space(Net, Index), ["tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate" | Limit]).

-spec fast(net(), index()) -> ok.
fast(Net, Index) ->
    in(space(Net, Index), ["tc", "qdisc", "delete", "dev", "eth0", "root"]).

router({Prefix, _}) ->
    Prefix ++ "_router".

space({Prefix, _}, Index) ->
    lists:concat([Prefix, "_", Index]).

subnet(Index) ->
    lists:concat(["10.77.", Index, "."]).

in(Space, Command) ->
    ip(["netns", "exec", Space | Command]).

ip(Arguments) ->
    case test_program:run(os:find_executable("ip"), Arguments) of
        {0, _} -> ok;
        {Status, Output} -> error({ip, Arguments, Status, Output})
    end.
