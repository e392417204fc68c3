%% A semaphore in Redis as people write it: a sorted set for each key, with a member for each permit, whose score is the
%% time at which it expires. A script counts and adds in one step. A caller that is refused asks again later, because
%% Redis has no queue. A holder that works longer than the expiry would have to renew it, which is not measured.
%%
%% Debian's server over loopback, and a connection for each process: RESP over a socket.
-module(bench_redis).

-export([start/0, stop/1, connect/1, acquire/3, acquire_waiting/3, release/2]).

-export_type([server/0, connection/0]).

-opaque server() :: {port(), inet:port_number()}.
%% The member of a permit is the number of the connection, which holds at most one of a key.
-opaque connection() :: {gen_tcp:socket(), Member :: binary(), Script :: binary()}.

-define(HOST, {127, 0, 0, 1}).
-define(EXPIRY_MS, 10_000).
%% A refused caller pauses this long, or up to twice as long.
-define(PAUSE_MS, 1).
-define(CLIENTS, "1000").

%% KEYS: the key. ARGV: the limit, the expiry in milliseconds, the member.
-define(ACQUIRE, <<
    "local t = redis.call('TIME') "
    "local now = t[1] * 1000 + math.floor(t[2] / 1000) "
    "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) "
    "if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1]) then "
    "redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[3]) return 1 end return 0"
>>).

%% Redis replaces the shell. When the pipe closes, also because this VM has ended, a background process stops it.
-define(UNTIL_WE_END, "exec 3<&0; (read _ <&3; kill $$) >/dev/null & exec \"$0\" \"$@\" 3<&-").

%% On a free port. Writes nothing to disk.
-spec start() -> server().
start() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, ?HOST}]),
    {ok, Number} = inet:port(Socket),
    ok = gen_tcp:close(Socket),
    Command = [
        "redis-server", "--bind", "127.0.0.1", "--port", integer_to_list(Number), "--maxclients", ?CLIENTS,
        "--appendonly", "no", "--save", ""
    ],
    Port = open_port({spawn_executable, "/bin/sh"}, [
        {args, ["-c", ?UNTIL_WE_END | Command]}, {line, 1000}, exit_status
    ]),
    ok = await_ready(Port),
    {Port, Number}.

await_ready(Port) ->
    receive
        {Port, {data, {_, Line}}} ->
            case string:find(Line, "Ready to accept") of
                nomatch -> await_ready(Port);
                _ -> ok
            end;
        {Port, {exit_status, Status}} ->
            error({redis_server, Status})
    end.

-spec stop(server()) -> ok.
stop({Port, _}) ->
    true = port_close(Port),
    ok.

%% On any node of this machine.
-spec connect(server()) -> connection().
connect({_, Number}) ->
    {ok, Socket} = gen_tcp:connect(?HOST, Number, [binary, {active, false}, {packet, line}, {nodelay, true}]),
    Script = call(Socket, [<<"SCRIPT">>, <<"LOAD">>, ?ACQUIRE]),
    {Socket, integer_to_binary(call(Socket, [<<"INCR">>, <<"connections">>])), Script}.

-spec acquire(connection(), binary(), pos_integer()) -> acquired | full.
acquire({Socket, Member, Script}, Key, Limit) ->
    Arguments = [integer_to_binary(Limit), integer_to_binary(?EXPIRY_MS), Member],
    case call(Socket, [<<"EVALSHA">>, Script, <<"1">>, Key | Arguments]) of
        1 -> acquired;
        0 -> full
    end.

-spec acquire_waiting(connection(), binary(), pos_integer()) -> acquired.
acquire_waiting(Connection, Key, Limit) ->
    case acquire(Connection, Key, Limit) of
        acquired ->
            acquired;
        full ->
            timer:sleep(?PAUSE_MS + rand:uniform(?PAUSE_MS + 1) - 1),
            acquire_waiting(Connection, Key, Limit)
    end.

-spec release(connection(), binary()) -> ok.
release({Socket, Member, _}, Key) ->
    1 = call(Socket, [<<"ZREM">>, Key, Member]),
    ok.

call(Socket, Words) ->
    Request = [
        ["*", integer_to_binary(length(Words)), "\r\n"]
        | [["$", integer_to_binary(byte_size(Word)), "\r\n", Word, "\r\n"] || Word <- Words]
    ],
    ok = gen_tcp:send(Socket, Request),
    {ok, Line} = gen_tcp:recv(Socket, 0),
    case Line of
        <<":", Number/binary>> -> binary_to_integer(string:trim(Number));
        <<"$", _/binary>> -> {ok, Text} = gen_tcp:recv(Socket, 0), string:trim(Text)
    end.
