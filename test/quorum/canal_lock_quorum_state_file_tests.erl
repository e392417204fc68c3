%% The state file of a voter, and its lock.
-module(canal_lock_quorum_state_file_tests).

-include_lib("eunit/include/eunit.hrl").

-export([folder/0, delete/1, content/1, content/2, guests/1, mark/1]).

-import(canal_lock_quorum_nif, [state_lock/1, state_read/2]).

%% The number of processes that write the file at the same time, and of writes by each.
-define(WRITERS, 8).
-define(WRITES, 10).

%% One test starts VMs.
-define(TIMEOUT_S, 300).

-define(OTHER_NODE, 'öther@somewhere').

-define(HEAD, "canal_lock_quorum state 1\n").

file_test_() ->
    {foreach, fun folder/0, fun delete/1, [
        fun(Folder) -> {timeout, ?TIMEOUT_S, {Title, fun() -> Test(path(Folder)) end}} end
     || {Title, Test} <- [
            {"a stored state is read again, with its view", fun read_again/1},
            {"a file has the number of its format, and a checksum", fun format/1},
            {"a write that a later one has overtaken changes nothing", fun overtaken/1},
            {"with many writers, some of them killed, the last state stays and the file is whole", fun writers/1},
            {"a file with any changed byte is lost, or another file", fun changed_byte/1},
            {"no other file is replaced", fun other_files/1},
            {"no other file with the name of the temporary file is replaced", fun other_new_files/1},
            {"a pipe is not a state file", fun pipe/1},
            {"a file that cannot be written or read is an error with the reason", fun no_file/1},
            {"bytes that are no state are a wrong argument", fun bad_content/1},
            {"the lock of a file can be taken again by this VM", fun lock_again/1},
            {"the lock of a file excludes other VMs until this one ends", fun lock_excludes/1},
            {"a start with another lease than that of the view is refused", fun other_lease/1}
        ]
    ]}.

folder() ->
    {ok, _} = application:ensure_all_started(crypto),
    ok = canal_lock_quorum_nif:load(),
    Name = "state-" ++ binary_to_list(binary:encode_hex(crypto:strong_rand_bytes(8))),
    Folder = filename:join(filename:basedir(user_cache, "canal_lock"), Name),
    ok = filelib:ensure_dir(filename:join(Folder, "file")),
    Folder.

delete(Folder) ->
    ok = file:del_dir_r(Folder).

path(Folder) ->
    unicode:characters_to_binary(filename:join(Folder, "fences ä")).

%% What a voter of this node stores that is the only member. Each time another state.
content(Node) ->
    content(Node, 10_000).

content(Node, Lease_ms) ->
    ok = canal_lock_quorum_nif:load(),
    Setup = #{node => Node, seeds => [Node], lease_ms => Lease_ms, run => 1, durable => true, clients => false},
    with_view(canal_lock_quorum_nif:voter_open(Setup, nil), []).

%% What it stores when it has taken its first view.
with_view(Voter, Events) ->
    {Outputs, Wait_ms, _} = canal_lock_quorum_nif:voter_step(Voter, Events),
    case lists:keymember(took, 1, Outputs) of
        true ->
            {store, _, Content} = lists:last([Store || Store = {store, _, _} <- Outputs]),
            Content;
        false ->
            _ = [receive after Wait_ms -> ok end || is_integer(Wait_ms)],
            with_view(Voter, [{stored, N} || {store, N, _} <- Outputs])
    end.

%% Of the last fields of a state, before the checksum: whether there may be guests, and the mark.
-spec guests(Content :: binary()) -> boolean().
guests(Content) -> element(1, guests_and_mark(Content)).

-spec mark(Content :: binary()) -> non_neg_integer().
mark(Content) -> element(2, guests_and_mark(Content)).

%% A number has 7 bits per byte, the lowest first; each byte but the last one has the highest bit.
guests_and_mark(Content) ->
    [Last | Before] = lists:reverse(binary_to_list(Content, 1, byte_size(Content) - 4)),
    {More, [Guests | _]} = lists:splitwith(fun(Byte) -> Byte >= 128 end, Before),
    Mark = lists:foldl(fun(Byte, High) -> (High bsl 7) bor (Byte band 127) end, Last, More),
    {Guests =:= 1, Mark}.

read(Path) ->
    state_read(Path, node()).

store(Path, Content) ->
    canal_lock_quorum_nif:state_store(Path, Content, canal_lock_quorum_state_file:number()).

%%% The file

read_again(Path) ->
    ?assertEqual(nil, read(Path)),
    lists:foreach(fun(Lease_ms) ->
        Content = content(node(), Lease_ms),
        ?assertEqual({ok, true}, store(Path, Content)),
        ?assertEqual({ok, Content, {0, [node()], Lease_ms}}, read(Path))
    end, [10_000, 1000, (1 bsl 32) - 1]),
    %% No temporary file remains.
    {ok, [_]} = file:list_dir(filename:dirname(Path)).

format(Path) ->
    {ok, true} = store(Path, content(node())),
    {ok, Bytes = <<?HEAD, _/binary>>} = file:read_file(Path),
    Size = byte_size(Bytes) - 4,
    <<Content:Size/binary, Checksum:32/little>> = Bytes,
    ?assertEqual(erlang:crc32(Content), Checksum).

overtaken(Path) ->
    [One, Other, Third] = [content(node()) || _ <- [1, 2, 3]],
    Store = fun(Content, Number) -> canal_lock_quorum_nif:state_store(Path, Content, Number) end,
    ?assertEqual({ok, true}, Store(One, 1)),
    ?assertEqual({ok, true}, Store(Other, 3)),
    ?assertEqual({ok, false}, Store(Third, 2)),
    ?assertMatch({ok, Other, _}, read(Path)),
    %% Numbers belong to a file.
    ?assertEqual({ok, true}, canal_lock_quorum_nif:state_store(<<Path/binary, "2">>, One, 2)).

writers(Path) ->
    {ok, true} = store(Path, content(node())),
    %% A write that a later one has overtaken says so.
    Store = fun(Contents) -> exit({stored, [Content || Content <- Contents, {ok, true} =:= store(Path, Content)]}) end,
    All = [[content(node()) || _ <- lists:seq(1, ?WRITES)] || _ <- lists:seq(1, ?WRITERS)],
    {Written, [Killed | _]} = lists:split(?WRITERS div 2, All),
    Victims = [spawn(fun() -> Store(Killed) end) || _ <- lists:seq(1, ?WRITERS div 2)],
    Writers = [spawn_monitor(fun() -> Store(Some) end) || Some <- Written],
    test_worker:kill(Victims),
    [?assertMatch({ok, _, _}, read(Path)) || _ <- lists:seq(1, ?WRITES)],
    Stored = [Content || Writer <- Writers, {stored, Some} <- [test_await:reason(Writer)], Content <- Some],
    ?assert(length(Stored) >= ?WRITES),
    {ok, Last, _} = read(Path),
    ?assert(lists:member(Last, lists:append(All))).

changed_byte(Path) ->
    {ok, true} = store(Path, content(node())),
    {ok, Bytes} = file:read_file(Path),
    Size = byte_size(Bytes),
    Head = length(?HEAD),
    lists:foreach(fun(At) ->
        <<Before:At/binary, Byte, After/binary>> = Bytes,
        ok = file:write_file(Path, [Before, Byte bxor 1, After]),
        ?assertMatch({At, {What, _}} when (What =:= error) =:= (At < Head), {At, read(Path)})
    end, lists:seq(0, Size - 1)),
    Content = content(node()),
    lists:foreach(fun({Text, Sentence}) ->
        ok = file:write_file(Path, Text),
        ?assertEqual({lost, Sentence}, read(Path)),
        ?assertEqual({ok, true}, store(Path, Content)),
        ?assertMatch({ok, Content, _}, read(Path))
    end, [{"", <<"it is empty">>}] ++ [
        {Text, <<"it is damaged">>}
     || Text <- [binary:part(Bytes, 0, Head), binary:part(Bytes, 0, Size - 1), [Bytes, 0]]
    ]).

-define(OTHER_FILES, [
    {<<"17\n">>, <<"it is not a state file of canal_lock">>},
    {<<255, 254>>, <<"it is not a state file of canal_lock">>},
    {<<"canal_lock_quorum state 2\n">>, <<"it is the state file of another version of canal_lock">>}
]).

other_files(Path) ->
    Content = content(node()),
    lists:foreach(fun({Bytes, Sentence}) ->
        ok = file:write_file(Path, Bytes),
        ?assertEqual({error, Sentence}, read(Path)),
        ?assertEqual({error, Sentence}, store(Path, Content)),
        ?assertEqual({ok, Bytes}, file:read_file(Path))
    end, ?OTHER_FILES),
    ok = file:delete(Path),
    Other = content(?OTHER_NODE),
    {ok, true} = store(Path, Other),
    Sentence = <<"it is the file of node ", (atom_to_binary(?OTHER_NODE, utf8))/binary>>,
    ?assertEqual({error, Sentence}, store(Path, Content)),
    ?assertEqual({error, Sentence}, read(Path)),
    ?assertEqual({ok, Other, {0, [?OTHER_NODE], 10_000}}, state_read(Path, ?OTHER_NODE)).

other_new_files(Path) ->
    New = <<Path/binary, ".new">>,
    Content = content(node()),
    ok = file:write_file(New, "my notes"),
    {error, Sentence} = read(Path),
    ?assertEqual(<<"another file has its name with .new at the end">>, Sentence),
    ?assertEqual({error, Sentence}, store(Path, Content)),
    ?assertEqual({ok, <<"my notes">>}, file:read_file(New)),
    %% What an interrupted write leaves.
    lists:foreach(fun(Begun) ->
        ok = file:write_file(New, Begun),
        ?assertEqual({ok, true}, store(Path, Content)),
        ?assertEqual({error, enoent}, file:read_file(New))
    end, ["", "canal_lock_qu", ?HEAD "a"]).

%% It could wait forever for a writer of the pipe.
pipe(Path) ->
    "" = os:cmd(unicode:characters_to_list(["mkfifo '", Path, "'"])),
    Refused = {error, <<"it is not a regular file">>},
    ?assertEqual(Refused, read(Path)),
    ?assertEqual(Refused, store(Path, content(node()))).

no_file(Path) ->
    Nowhere = <<Path/binary, "/nowhere">>,
    {error, Sentence} = store(Nowhere, content(node())),
    ?assertNotEqual(nomatch, string:find(Sentence, "No such file")),
    ?assertMatch({error, _}, state_lock(Nowhere)),
    ok = file:make_dir(Path),
    ?assertMatch({error, _}, read(Path)),
    ?assertMatch({error, _}, store(Path, content(node()))).

bad_content(Path) ->
    [?assertError(badarg, store(Path, Bytes)) || Bytes <- [<<>>, <<"notes">>, <<(content(node()))/binary, 0>>]],
    ?assertEqual(nil, read(Path)).

lock_again(Path) ->
    [?assertEqual({ok, true}, state_lock(Path)) || _ <- [1, 2]].

lock_excludes(Path) ->
    {ok, true} = state_lock(Path),
    ?assertEqual("{ok,false}", in_other_vm("canal_lock_quorum_nif:state_lock", Path)),
    Free = <<Path/binary, "2">>,
    ?assertEqual("{ok,true}", in_other_vm("canal_lock_quorum_nif:state_lock", Free)),
    %% That VM has ended.
    ?assertEqual({ok, true}, state_lock(Free)).

in_other_vm(Function, Path) ->
    Ebin = filename:dirname(code:which(canal_lock_quorum_nif)),
    Eval = io_lib:format("ok = canal_lock_quorum_nif:load(), io:format(\"~~p\", [~s(~w)]), halt().", [Function, Path]),
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    {0, Output} = test_program:run(Erl, ["-noshell", "-pa", Ebin, "-eval", Eval]),
    binary_to_list(Output).

other_lease(Path) ->
    {ok, true} = store(Path, content(node(), 2000)),
    Check = fun(Lease_ms) ->
        Options = #{members => [node()], state_file => Path, lease_ms => Lease_ms},
        canal_lock_quorum_state_file:check(canal_lock_quorum_config:make(Options))
    end,
    ?assertEqual(ok, Check(2000)),
    ?assertEqual({error, {lease_ms, 3000, 2000}}, Check(3000)).
