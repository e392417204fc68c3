%% The state file of a member, its lock, and what a voter starts with.
-module(canal_lock_quorum_state_file_tests).

-include_lib("eunit/include/eunit.hrl").

-export([folder/0, delete/1]).

-import(canal_lock_quorum_nif, [state_lock/1, state_read/1]).

%% The number of processes that write the file at the same time, and of writes by each.
-define(WRITERS, 8).
-define(WRITES, 20).

%% One test starts VMs.
-define(TIMEOUT_S, 300).

-define(OTHER_NODE, <<"other@somewhere">>).

file_test_() ->
    {foreach, fun folder/0, fun delete/1, [
        fun(Folder) -> {timeout, ?TIMEOUT_S, {Title, fun() -> Test(path(Folder)) end}} end
     || {Title, Test} <- [
            {"a stored state is read again", fun read_again/1},
            {"a file has one line for each field, and a checksum", fun lines/1},
            {"a mark is not lowered", fun never_lowered/1},
            {"a later life without a mark removes it", fun mark_removed/1},
            {"a writer of an earlier life changes nothing", fun earlier_life/1},
            {"a write that a later one has overtaken changes nothing", fun overtaken/1},
            {"the next life keeps whether there are guests", fun guests/1},
            {"there may be guests if the file is lost, damaged or old", fun lost_guests/1},
            {"with many writers, some of them killed, the highest mark stays and the file is whole", fun writers/1},
            {"a file with any changed byte is lost, or another file", fun changed_byte/1},
            {"no other file is replaced", fun other_files/1},
            {"no other file with the name of the temporary file is replaced", fun other_new_files/1},
            {"a pipe is not a state file", fun pipe/1},
            {"a file that cannot be written or read is an error with the reason", fun no_file/1},
            {"a state with a name that a line cannot have is a wrong argument", fun bad_name/1},
            {"the lock of a file can be taken again by this VM", fun lock_again/1},
            {"the lock of a file excludes other VMs until this one ends", fun lock_excludes/1},
            {"the first life is the clock's, and each start raises it", fun lives_grow/1},
            {"a start does not replace another file", fun start_with_other_files/1},
            {"a damaged or empty file is not used", fun damaged/1},
            {"a life that others have seen is exceeded, and the mark is removed", fun seen_life/1},
            {"the quarantine covers the longest lease of earlier lives", fun longest_lease/1},
            {"the members of the last start are returned", fun previous_members/1},
            {"members of earlier lists are kept until the list is agreed", fun former_members/1},
            {"a mark is kept if members join", fun grown/1},
            {"a mark is removed, and is the origin, if a member leaves", fun shrunk/1},
            {"a mark is kept if the list stays the same", fun same_list/1},
            {"without a file, the life is the clock's", fun no_state_file/1}
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

state(Life, Mark) ->
    #{
        node => atom_to_binary(node(), utf8),
        members => [atom_to_binary(node(), utf8), <<"b@höst2"/utf8>>],
        list => <<"00112233445566778899aabbccddeeff">>,
        former => [],
        guests => false,
        life => Life,
        lease_ms => 10000,
        mark => Mark
    }.

%%% The file

read_again(Path) ->
    ?assertEqual({ok, nil}, state_read(Path)),
    lists:foreach(fun(State) ->
        ?assertEqual({ok, true}, canal_lock_quorum_state_file:store(Path, State)),
        ?assertEqual({ok, State}, state_read(Path))
    end, [state(1, nil), state(2, 17), (state((1 bsl 32) - 1, 1 bsl 62))#{lease_ms := 1}]),
    %% No temporary file remains.
    {ok, [_]} = file:list_dir(filename:dirname(Path)).

lines(Path) ->
    [One, Other] = [<<"a@h">>, <<"b@h">>],
    {ok, true} = canal_lock_quorum_state_file:store(Path, (state(7, 900))#{node := One, members := [One, Other]}),
    Lines = [
        "canal_lock_quorum state 1\n", "node a@h\n", "members a@h b@h\n", "list 00112233445566778899aabbccddeeff\n",
        "guests false\n", "life 7\n", "lease_ms 10000\n", "mark 900\n"
    ],
    Checksum = io_lib:format("checksum ~8.16.0b~n", [erlang:crc32(Lines)]),
    ?assertEqual({ok, iolist_to_binary([Lines, Checksum])}, file:read_file(Path)).

never_lowered(Path) ->
    [{ok, true} = canal_lock_quorum_state_file:store(Path, state(3, Mark)) || Mark <- [5, 9, 7, nil]],
    ?assertEqual({ok, state(3, 9)}, state_read(Path)),
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(4, 8)),
    ?assertEqual({ok, state(4, 9)}, state_read(Path)).

mark_removed(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(3, 9)),
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(4, nil)),
    ?assertEqual({ok, state(4, nil)}, state_read(Path)).

earlier_life(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(4, 5)),
    ?assertEqual({ok, false}, canal_lock_quorum_state_file:store(Path, state(3, 9))),
    ?assertEqual({ok, state(4, 5)}, state_read(Path)).

overtaken(Path) ->
    Store = fun(Mark, Number) -> canal_lock_quorum_nif:state_store(Path, state(1, Mark), Number) end,
    ?assertEqual({ok, true}, Store(1, 1)),
    ?assertEqual({ok, true}, Store(5, 3)),
    ?assertEqual({ok, false}, Store(9, 2)),
    ?assertEqual({ok, state(1, 5)}, state_read(Path)),
    %% Numbers belong to a file.
    ?assertEqual({ok, true}, canal_lock_quorum_nif:state_store(<<Path/binary, "2">>, state(1, 1), 2)).

guests(Path) ->
    lists:foreach(fun(Guests) ->
        State = canal_lock_quorum_state_file:with_guests(Guests, state(7, 900)),
        _ = file:delete(Path),
        {ok, true} = canal_lock_quorum_state_file:store(Path, State),
        ?assertMatch(#{start := #{guests := Guests}, state := #{guests := Guests}}, start(Path)),
        ?assertMatch({ok, #{guests := Guests, life := 8}}, state_read(Path))
    end, [true, false]).

%% A file of this node says it, also if no clients are allowed now.
lost_guests(Path) ->
    %% A node without distribution has no clients.
    {ok, #{start := #{guests := false}}} = canal_lock_quorum_state_file:start(config(Path, #{clients => all}), 0),
    Start = fun(Clients, Seen) ->
        Config = (config(Path, #{clients => Clients}))#{may_have_clients := Clients =/= none},
        {ok, #{start := #{guests := Guests}}} = canal_lock_quorum_state_file:start(Config, Seen),
        ?assertMatch({ok, #{guests := Guests}}, state_read(Path)),
        Guests
    end,
    Files = [
        {fun() -> file:delete(Path) end, 0},
        {fun() -> ok end, 0},
        {fun() -> {ok, true} = canal_lock_quorum_state_file:store(Path, state(1 bsl 31, 1)) end, (1 bsl 31) + 1},
        {fun() -> file:write_file(Path, "") end, 0},
        {fun() -> file:write_file(Path, "canal_lock_quorum state 1\n") end, 0}
    ],
    lists:foreach(fun({Before, Seen}) ->
        _ = Before(),
        ?assert(Start(all, Seen)),
        ?assert(Start(none, 0))
    end, Files),
    _ = file:delete(Path),
    ?assertNot(Start(none, 0)).

writers(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(1, 1)),
    Marks = [[rand:uniform(1 bsl 40) || _ <- lists:seq(1, ?WRITES)] || _ <- lists:seq(1, ?WRITERS)],
    %% A write that a later one has overtaken says so.
    Store = fun(Some) ->
        exit({stored, [Mark || Mark <- Some, {ok, true} =:= canal_lock_quorum_state_file:store(Path, state(1, Mark))]})
    end,
    {Written, [Killed | _]} = lists:split(?WRITERS div 2, Marks),
    Victims = [spawn(fun() -> Store(Killed) end) || _ <- lists:seq(1, ?WRITERS div 2)],
    Writers = [spawn_monitor(fun() -> Store(Some) end) || Some <- Written],
    test_worker:kill(Victims),
    [?assertMatch({ok, #{life := 1}}, state_read(Path)) || _ <- lists:seq(1, ?WRITES)],
    Stored = [Mark || Writer <- Writers, {stored, Some} <- [test_await:reason(Writer)], Mark <- Some],
    ?assert(length(Stored) >= ?WRITES),
    {ok, #{mark := Highest}} = state_read(Path),
    ?assert(Highest >= lists:max(Stored)),
    ?assert(lists:member(Highest, lists:append(Marks))).

changed_byte(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(7, 900)),
    {ok, Bytes} = file:read_file(Path),
    Size = byte_size(Bytes),
    Head = length("canal_lock_quorum state 1\n"),
    lists:foreach(fun(At) ->
        <<Before:At/binary, Byte, After/binary>> = Bytes,
        ok = file:write_file(Path, [Before, Byte bxor 1, After]),
        %% A changed byte may be no UTF-8.
        ?assertMatch({At, {What, _}} when (What =:= error) =:= (At < Head), {At, state_read(Path)})
    end, lists:seq(0, Size - 1)),
    lists:foreach(fun({Text, Sentence}) ->
        ok = file:write_file(Path, Text),
        ?assertEqual({lost, Sentence}, state_read(Path)),
        ?assertEqual({ok, true}, canal_lock_quorum_state_file:store(Path, state(1, 17))),
        ?assertEqual({ok, state(1, 17)}, state_read(Path))
    end, [{"", <<"it is empty">>}] ++ [
        {Text, <<"it is damaged">>}
     || Text <- [binary:part(Bytes, 0, Head), binary:part(Bytes, 0, Size - 1), [Bytes, "mark 901\n"]]
    ]).

-define(OTHER_FILES, [
    {<<"17\n">>, <<"it is not a state file of canal_lock">>},
    {<<255, 254>>, <<"it is not a state file of canal_lock">>},
    {<<"canal_lock_quorum state 2\n">>, <<"it is the state file of another version of canal_lock">>}
]).

other_files(Path) ->
    lists:foreach(fun({Bytes, Sentence}) ->
        ok = file:write_file(Path, Bytes),
        ?assertEqual({error, Sentence}, state_read(Path)),
        ?assertEqual({error, Sentence}, canal_lock_quorum_state_file:store(Path, state(1, 17))),
        ?assertEqual({ok, Bytes}, file:read_file(Path))
    end, ?OTHER_FILES),
    ok = file:delete(Path),
    Other = (state(3, 1))#{node := ?OTHER_NODE},
    {ok, true} = canal_lock_quorum_state_file:store(Path, Other),
    {error, Sentence} = canal_lock_quorum_state_file:store(Path, state(4, 17)),
    ?assertEqual(<<"it is the file of node ", ?OTHER_NODE/binary>>, Sentence),
    ?assertEqual({ok, Other}, state_read(Path)).

other_new_files(Path) ->
    New = <<Path/binary, ".new">>,
    ok = file:write_file(New, "my notes"),
    {error, Sentence} = state_read(Path),
    ?assertEqual(<<"another file has its name with .new at the end">>, Sentence),
    ?assertEqual({error, Sentence}, canal_lock_quorum_state_file:store(Path, state(1, 17))),
    ?assertEqual({ok, <<"my notes">>}, file:read_file(New)),
    %% What an interrupted write leaves.
    lists:foreach(fun(Begun) ->
        ok = file:write_file(New, Begun),
        ?assertEqual({ok, true}, canal_lock_quorum_state_file:store(Path, state(1, 17))),
        ?assertEqual({error, enoent}, file:read_file(New))
    end, ["", "canal_lock_qu", "canal_lock_quorum state 1\nnode a"]).

%% It could wait forever for a writer of the pipe.
pipe(Path) ->
    "" = os:cmd(unicode:characters_to_list(["mkfifo '", Path, "'"])),
    Refused = {error, <<"it is not a regular file">>},
    ?assertEqual(Refused, state_read(Path)),
    ?assertEqual(Refused, canal_lock_quorum_state_file:store(Path, state(1, 17))).

no_file(Path) ->
    Nowhere = <<Path/binary, "/nowhere">>,
    {error, Sentence} = canal_lock_quorum_state_file:store(Nowhere, state(1, 17)),
    ?assertNotEqual(nomatch, string:find(Sentence, "No such file")),
    ?assertMatch({error, _}, state_lock(Nowhere)),
    ok = file:make_dir(Path),
    ?assertMatch({error, _}, state_read(Path)),
    ?assertMatch({error, _}, canal_lock_quorum_state_file:store(Path, state(1, 17))).

bad_name(Path) ->
    [
        ?assertError(badarg, canal_lock_quorum_state_file:store(Path, (state(1, 17))#{node := Name}))
     || Name <- [<<"a\nlife 9">>, <<"a\r">>]
    ],
    ?assertError(badarg, canal_lock_quorum_state_file:store(Path, (state(1, 17))#{members := [<<"a b">>]})),
    ?assertEqual({ok, nil}, state_read(Path)).

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

%%% The start of a voter

config(Path) ->
    config(Path, #{}).

config(Path, Options) ->
    canal_lock_quorum_config:make(maps:merge(#{members => [node()], state_file => Path}, Options)).

start(Path) ->
    {ok, Started} = canal_lock_quorum_state_file:start(config(Path), 0),
    Started.

lives_grow(Path) ->
    Clock = erlang:system_time(second),
    #{found := nothing, start := #{life := Life, floor := nil, durable := true}} = start(Path),
    ?assert(Life >= Clock),
    %% The start is stored.
    ?assertMatch({ok, #{life := Life, mark := nil, lease_ms := 10000}}, state_read(Path)),
    [?assertMatch(#{found := own, start := #{life := More}} when More =:= Life + Add, start(Path)) || Add <- [1, 2, 3]].

start_with_other_files(Path) ->
    Refused = fun() ->
        {ok, Bytes} = file:read_file(Path),
        {error, Sentence} = canal_lock_quorum_state_file:start(config(Path), 0),
        ?assertEqual({ok, Bytes}, file:read_file(Path)),
        Sentence
    end,
    lists:foreach(fun({Bytes, Sentence}) ->
        ok = file:write_file(Path, Bytes),
        ?assertEqual(Sentence, Refused())
    end, ?OTHER_FILES),
    ok = file:delete(Path),
    {ok, true} = canal_lock_quorum_state_file:store(Path, (state(7, 17))#{node := ?OTHER_NODE}),
    ?assertEqual(<<"it is the file of node ", ?OTHER_NODE/binary>>, Refused()).

damaged(Path) ->
    lists:foreach(fun(Text) ->
        ok = file:write_file(Path, Text),
        ?assertMatch(#{found := {lost, _}, start := #{floor := nil}}, start(Path)),
        ?assertMatch({ok, #{mark := nil}}, state_read(Path))
    end, ["", "canal_lock_quorum state 1\nnode"]).

seen_life(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(7, 900)),
    {ok, #{start := Start}} = canal_lock_quorum_state_file:start(config(Path), 9),
    ?assertMatch(#{life := 10, floor := nil}, Start),
    ?assertMatch({ok, #{life := 10, mark := nil}}, state_read(Path)),
    %% A life that the file exceeds: two starts had the same life.
    {ok, true} = canal_lock_quorum_state_file:store(Path, state(20, 900)),
    {ok, #{start := Later}} = canal_lock_quorum_state_file:start(config(Path), 20),
    ?assertMatch(#{life := 21, floor := nil}, Later).

longest_lease(Path) ->
    {ok, true} = canal_lock_quorum_state_file:store(Path, (state(1, 17))#{lease_ms := 60000}),
    ?assertMatch(#{start := #{quarantine_ms := 60000}}, start(Path)),
    %% The voter lowers it after its quarantine, not before.
    ?assertMatch({ok, #{lease_ms := 60000}}, state_read(Path)),
    {ok, true} = canal_lock_quorum_state_file:store(Path, (state(2, 17))#{lease_ms := 10000}),
    Longer = config(Path, #{lease_ms => 20000}),
    {ok, #{start := Start}} = canal_lock_quorum_state_file:start(Longer, 0),
    ?assertMatch(#{quarantine_ms := 20000}, Start),
    %% A longer lease is stored before it is promised.
    ?assertMatch({ok, #{lease_ms := 20000}}, state_read(Path)).

previous_members(Path) ->
    _ = start(Path),
    ?assertMatch(#{previous_members := [_]}, start(Path)),
    {ok, #{members := Members, list := List}} = state_read(Path),
    ?assertEqual([atom_to_binary(node(), utf8)], Members),
    ?assertEqual(32, byte_size(List)),
    Two = config(Path, #{members => [node(), 'b@host2']}),
    {ok, #{previous_members := Previous}} = canal_lock_quorum_state_file:start(Two, 0),
    ?assertEqual(Members, Previous),
    {ok, #{list := OtherList}} = state_read(Path),
    ?assertNotEqual(List, OtherList).

former_members(Path) ->
    Start = fun(Others) ->
        Config = config(Path, #{members => [node() | Others]}),
        {ok, Started} = canal_lock_quorum_state_file:start(Config, 0),
        #{start := #{misconfigured := IsMisconfigured}, state := State} = Started,
        ?assertEqual({ok, State}, state_read(Path)),
        {IsMisconfigured, lists:sort(canal_lock_quorum_state_file:former(State) -- [node()])}
    end,
    ?assertEqual({false, []}, Start([a@b])),
    ?assertEqual({false, []}, Start([a@b])),
    ?assertEqual({true, [a@b]}, Start([a@b, b@b])),
    ?assertEqual({true, [a@b]}, Start([a@b, b@b])),
    ?assertEqual({true, [a@b, b@b]}, Start([c@b])),
    ?assertEqual({true, [a@b, b@b, c@b]}, Start([a@b])),
    {ok, State} = state_read(Path),
    {ok, true} = canal_lock_quorum_state_file:store(Path, canal_lock_quorum_state_file:agreed(State)),
    ?assertEqual({false, []}, Start([a@b])).

%% A mark far ahead of the clock.
-define(MARK, 1 bsl 60).

members(Count) ->
    [node() | lists:sublist([a@b, b@b, c@b, d@b, e@b, f@b], Count - 1)].

%% What a voter starts with and has stored, if it had these options and this mark, and has other options now.
changed(Path, Before, Now) ->
    _ = file:delete(Path),
    {ok, #{state := State}} = canal_lock_quorum_state_file:start(config(Path, Before), 0),
    {ok, true} = canal_lock_quorum_state_file:store(Path, canal_lock_quorum_state_file:with_mark(?MARK, State)),
    {ok, Started = #{state := Stored}} = canal_lock_quorum_state_file:start(config(Path, Now), 0),
    ?assertEqual({ok, Stored}, state_read(Path)),
    Started.

keeps_mark(#{start := #{floor := Floor, origin := Origin}, state := #{mark := Mark}}) ->
    ?assertEqual({?MARK, ?MARK}, {Floor, Mark}),
    ?assert(Origin < ?MARK).

grown(Path) ->
    keeps_mark(changed(Path, #{members => members(4)}, #{members => members(5)})).

shrunk(Path) ->
    Five = #{members => members(5)},
    lists:foreach(fun(Now) ->
        #{start := Start, state := Stored, found := own} = changed(Path, Five, Now),
        ?assertMatch(#{floor := nil, origin := ?MARK, misconfigured := true}, Start),
        ?assertMatch(#{mark := nil}, Stored),
        %% The mark is gone: a clock must be enough now.
        {ok, #{start := Again}} = canal_lock_quorum_state_file:start(config(Path, Now), 0),
        #{floor := nil, origin := Origin} = Again,
        ?assert(Origin < ?MARK)
    end, [#{members => members(4)}, #{members => [node(), f@b]}]),
    %% A mark below the clock does not lower the origin.
    {ok, #{state := State}} = canal_lock_quorum_state_file:start(config(Path, Five), 0),
    {ok, true} = canal_lock_quorum_state_file:store(Path, canal_lock_quorum_state_file:with_mark(17, State)),
    OfFour = config(Path, #{members => members(4)}),
    {ok, #{start := #{origin := Clock}}} = canal_lock_quorum_state_file:start(OfFour, 0),
    ?assert(Clock > 17).

same_list(Path) ->
    Five = #{members => members(5)},
    keeps_mark(changed(Path, Five, Five)),
    keeps_mark(changed(Path, Five, Five#{run => 7, lease_ms => 12_000})).

no_state_file(_Path) ->
    Config = (config(<<"unused">>))#{state_file := none},
    Clock = erlang:system_time(second),
    {ok, #{start := Start, state := none}} = canal_lock_quorum_state_file:start(Config, 0),
    #{life := Life, floor := nil, durable := false, quarantine_ms := 10000} = Start,
    ?assert(Life >= Clock),
    {ok, #{start := #{life := Later}}} = canal_lock_quorum_state_file:start(Config, Life + 100),
    ?assertEqual(Life + 101, Later).
