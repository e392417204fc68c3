%% The state file of a member, its lock, and what a voter starts with.
-module(canal_lock_quorum_state_tests).

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
            {"clients are stored, and kept by the next life", fun clients/1},
            {"the register may lack a client if the file is lost, broken, old or of another node", fun lost_register/1},
            {"with many writers, some of them killed, the highest mark stays and the file is whole", fun writers/1},
            {"any changed byte is an error, and the file can be replaced", fun changed_byte/1},
            {"a file of format 1 has only a mark", fun format_1/1},
            {"a file that cannot be written or read is an error with the reason", fun no_file/1},
            {"a state with a name that a line cannot have is a wrong argument", fun bad_name/1},
            {"the lock of a file can be taken again by this VM", fun lock_again/1},
            {"the lock of a file excludes other VMs until this one ends", fun lock_excludes/1},
            {"the first life is the clock's, and each start raises it", fun lives_grow/1},
            {"a file of format 1 keeps its mark, and gets life 1", fun life_of_format_1/1},
            {"the file of another node is not used", fun other_node/1},
            {"a broken file is not used", fun broken/1},
            {"a life that others have seen is exceeded, and the mark is removed", fun seen_life/1},
            {"the quarantine covers the longest lease of earlier lives", fun longest_lease/1},
            {"the members of the last start are returned", fun previous_members/1},
            {"members of earlier lists are kept until the list is agreed", fun former_members/1},
            {"a mark is kept if members join, and all members vote", fun mark_of_a_whole_list/1},
            {"a mark is removed if a member leaves or the voters of names change, and is a bound of the origin",
                fun regrouped/1},
            {"a mark is kept if the voters of names stay the same", fun same_groups/1},
            {"members wait for each other if only their voters change", fun former_voters/1},
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
        clients => [],
        life => Life,
        lease_ms => 10000,
        below => Mark
    }.

%%% The file

read_again(Path) ->
    ?assertEqual({ok, nil}, state_read(Path)),
    lists:foreach(fun(State) ->
        ?assertEqual({ok, true}, canal_lock_quorum_state:store(Path, State)),
        ?assertEqual({ok, State}, state_read(Path))
    end, [state(1, nil), state(2, 17), (state((1 bsl 32) - 1, 1 bsl 62))#{lease_ms := 1}]),
    %% No temporary file remains.
    {ok, [_]} = file:list_dir(filename:dirname(Path)).

lines(Path) ->
    [One, Other] = [<<"a@h">>, <<"b@h">>],
    {ok, true} = canal_lock_quorum_state:store(Path, (state(7, 900))#{node := One, members := [One, Other]}),
    Lines = [
        "canal_lock_quorum state 2\n", "node a@h\n", "members a@h b@h\n", "list 00112233445566778899aabbccddeeff\n",
        "life 7\n", "lease_ms 10000\n", "below 900\n"
    ],
    Checksum = io_lib:format("checksum ~8.16.0b~n", [erlang:crc32(Lines)]),
    ?assertEqual({ok, iolist_to_binary([Lines, Checksum])}, file:read_file(Path)).

never_lowered(Path) ->
    [{ok, true} = canal_lock_quorum_state:store(Path, state(3, Mark)) || Mark <- [5, 9, 7, nil]],
    ?assertEqual({ok, state(3, 9)}, state_read(Path)),
    {ok, true} = canal_lock_quorum_state:store(Path, state(4, 8)),
    ?assertEqual({ok, state(4, 9)}, state_read(Path)).

mark_removed(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, state(3, 9)),
    {ok, true} = canal_lock_quorum_state:store(Path, state(4, nil)),
    ?assertEqual({ok, state(4, nil)}, state_read(Path)).

earlier_life(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, state(4, 5)),
    ?assertEqual({ok, false}, canal_lock_quorum_state:store(Path, state(3, 9))),
    ?assertEqual({ok, state(4, 5)}, state_read(Path)),
    %% The file of another node has no life of this one.
    {ok, true} = canal_lock_quorum_state:store(Path, (state(3, 1))#{node := ?OTHER_NODE}),
    ?assertEqual({ok, (state(3, 1))#{node := ?OTHER_NODE}}, state_read(Path)).

overtaken(Path) ->
    Store = fun(Mark, Number) -> canal_lock_quorum_nif:state_store(Path, state(1, Mark), Number) end,
    ?assertEqual({ok, true}, Store(1, 1)),
    ?assertEqual({ok, true}, Store(5, 3)),
    ?assertEqual({ok, false}, Store(9, 2)),
    ?assertEqual({ok, state(1, 5)}, state_read(Path)),
    %% Numbers belong to a file.
    ?assertEqual({ok, true}, canal_lock_quorum_nif:state_store(<<Path/binary, "2">>, state(1, 1), 2)).

clients(Path) ->
    [One, Other] = [<<"a@h">>, <<"c@h">>],
    {ok, First} = canal_lock_quorum_state:register(One, state(7, 900)),
    {ok, Registered} = canal_lock_quorum_state:register(Other, First),
    {ok, true} = canal_lock_quorum_state:store(Path, Registered),
    {ok, Text} = file:read_file(Path),
    ?assertMatch({_, _}, binary:match(Text, <<"\nclients a@h c@h\nlife 7\n">>)),
    #{start := Start, state := State} = start(Path),
    ?assertMatch(#{clients := [One, Other], knows_clients := true}, Start),
    ?assertMatch({ok, #{clients := [One, Other], life := 8}}, state_read(Path)),
    {ok, true} = canal_lock_quorum_state:store(Path, canal_lock_quorum_state:unregister(One, State)),
    ?assertMatch(#{start := #{clients := [Other]}}, start(Path)),
    %% A name that the file cannot have.
    ?assertEqual(bad_name, canal_lock_quorum_state:register(<<"a b@h">>, State)).

lost_register(Path) ->
    Knows = fun(Clients, Seen) ->
        {ok, #{start := #{knows_clients := Knows}}} =
            canal_lock_quorum_state:start(config(Path, #{clients => Clients}), Seen),
        Knows
    end,
    Files = [
        {fun() -> ok end, 0, false},
        %% In its quarantine, it has stored no mark.
        {fun() -> ok end, 0, false},
        {fun() -> store_mark(Path) end, 0, true},
        {fun() -> ok end, 1 bsl 31, false},
        {fun() -> ok end, 0, false},
        {fun() -> file:write_file(Path, "broken") end, 0, false},
        {fun() -> {ok, true} = canal_lock_quorum_state:store(Path, (state(1, 1))#{node := ?OTHER_NODE}) end, 0, false}
    ],
    lists:foreach(fun({Before, Seen, Known}) ->
        _ = Before(),
        ?assertEqual({Seen, Known}, {Seen, Knows(all, Seen)})
    end, Files),
    _ = file:delete(Path),
    ?assert(Knows(none, 0)),
    {ok, #{start := WithoutFile}} = canal_lock_quorum_state:start(
        canal_lock_quorum_config:make(#{members => [node()], fence_file => none, clients => [a@b]}), 0),
    ?assertMatch(#{knows_clients := false, clients := []}, WithoutFile).

store_mark(Path) ->
    {ok, State} = state_read(Path),
    {ok, true} = canal_lock_quorum_state:store(Path, canal_lock_quorum_state:with_mark(17, State)).

writers(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, state(1, 1)),
    Marks = [[rand:uniform(1 bsl 40) || _ <- lists:seq(1, ?WRITES)] || _ <- lists:seq(1, ?WRITERS)],
    %% A write that a later one has overtaken says so.
    Store = fun(Some) ->
        exit({stored, [Mark || Mark <- Some, {ok, true} =:= canal_lock_quorum_state:store(Path, state(1, Mark))]})
    end,
    {Written, [Killed | _]} = lists:split(?WRITERS div 2, Marks),
    Victims = [spawn(fun() -> Store(Killed) end) || _ <- lists:seq(1, ?WRITERS div 2)],
    Writers = [spawn_monitor(fun() -> Store(Some) end) || Some <- Written],
    test_worker:kill(Victims),
    [?assertMatch({ok, #{life := 1}}, state_read(Path)) || _ <- lists:seq(1, ?WRITES)],
    Stored = [Mark || Writer <- Writers, {stored, Some} <- [test_await:reason(Writer)], Mark <- Some],
    ?assert(length(Stored) >= ?WRITES),
    {ok, #{below := Highest}} = state_read(Path),
    ?assert(Highest >= lists:max(Stored)),
    ?assert(lists:member(Highest, lists:append(Marks))).

changed_byte(Path) ->
    Invalid = {error, <<"not a fence file, or an incomplete one">>},
    {ok, true} = canal_lock_quorum_state:store(Path, state(7, 900)),
    {ok, Bytes} = file:read_file(Path),
    Size = byte_size(Bytes),
    lists:foreach(fun(Text) ->
        ok = file:write_file(Path, Text),
        %% A changed byte may be no UTF-8.
        ?assertMatch({error, _}, state_read(Path))
    end, [[binary:part(Bytes, 0, At), binary:at(Bytes, At) bxor 1, binary:part(Bytes, At + 1, Size - At - 1)]
          || At <- lists:seq(0, Size - 1)]),
    lists:foreach(fun(Text) ->
        ok = file:write_file(Path, Text),
        ?assertEqual(Invalid, state_read(Path))
    end, ["", "17\n", binary:part(Bytes, 0, Size - 1), [Bytes, "below 901\n"],
          "canal_lock_quorum fences below 17", "canal_lock_quorum fences below x\n"]),
    ?assertEqual({ok, true}, canal_lock_quorum_state:store(Path, state(1, 17))),
    ?assertEqual({ok, state(1, 17)}, state_read(Path)).

format_1(Path) ->
    ok = file:write_file(Path, "canal_lock_quorum fences below 17\n"),
    Nothing = #{node => <<>>, members => [], list => <<>>, former => [], clients => [], life => 0, lease_ms => 0},
    ?assertEqual({ok, Nothing#{below => 17}}, state_read(Path)).

no_file(Path) ->
    Nowhere = <<Path/binary, "/nowhere">>,
    {error, Sentence} = canal_lock_quorum_state:store(Nowhere, state(1, 17)),
    ?assertNotEqual(nomatch, string:find(Sentence, "No such file")),
    ?assertMatch({error, _}, state_lock(Nowhere)),
    ok = file:make_dir(Path),
    ?assertMatch({error, _}, state_read(Path)),
    ?assertMatch({error, _}, canal_lock_quorum_state:store(Path, state(1, 17))).

bad_name(Path) ->
    [
        ?assertError(badarg, canal_lock_quorum_state:store(Path, (state(1, 17))#{node := Name}))
     || Name <- [<<"a\nlife 9">>, <<"a\r">>]
    ],
    ?assertError(badarg, canal_lock_quorum_state:store(Path, (state(1, 17))#{members := [<<"a b">>]})),
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
    canal_lock_quorum_config:make(maps:merge(#{members => [node()], fence_file => Path}, Options)).

start(Path) ->
    {ok, Started} = canal_lock_quorum_state:start(config(Path), 0),
    Started.

lives_grow(Path) ->
    Clock = erlang:system_time(second),
    #{found := nothing, start := #{life := Life, floor := nil, durable := true}} = start(Path),
    ?assert(Life >= Clock),
    %% The start is stored.
    ?assertMatch({ok, #{life := Life, below := nil, lease_ms := 10000}}, state_read(Path)),
    [?assertMatch(#{found := own, start := #{life := More}} when More =:= Life + Add, start(Path)) || Add <- [1, 2, 3]].

life_of_format_1(Path) ->
    ok = file:write_file(Path, "canal_lock_quorum fences below 17\n"),
    ?assertMatch(#{found := own, start := #{life := 1, floor := 17}, previous_members := none}, start(Path)),
    ?assertMatch({ok, #{life := 1, below := 17}}, state_read(Path)).

other_node(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, (state((1 bsl 32) - 1, 17))#{node := ?OTHER_NODE}),
    Started = #{start := #{life := Life}} = start(Path),
    ?assertMatch(#{found := {other_node, ?OTHER_NODE}, start := #{floor := nil}, previous_members := none}, Started),
    Me = atom_to_binary(node(), utf8),
    ?assertMatch({ok, #{node := Me, life := Life, below := nil}}, state_read(Path)),
    ?assert(Life < (1 bsl 32) - 1).

broken(Path) ->
    ok = file:write_file(Path, "fences"),
    ?assertMatch(#{found := {unreadable, _}, start := #{floor := nil}}, start(Path)),
    ?assertMatch({ok, #{below := nil}}, state_read(Path)).

seen_life(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, state(7, 900)),
    {ok, #{start := Start}} = canal_lock_quorum_state:start(config(Path), 9),
    ?assertMatch(#{life := 10, floor := nil}, Start),
    ?assertMatch({ok, #{life := 10, below := nil}}, state_read(Path)),
    %% A life that the file exceeds: two starts had the same life.
    {ok, true} = canal_lock_quorum_state:store(Path, state(20, 900)),
    {ok, #{start := Later}} = canal_lock_quorum_state:start(config(Path), 20),
    ?assertMatch(#{life := 21, floor := nil}, Later).

longest_lease(Path) ->
    {ok, true} = canal_lock_quorum_state:store(Path, (state(1, 17))#{lease_ms := 60000}),
    ?assertMatch(#{start := #{quarantine_ms := 60000}}, start(Path)),
    %% The voter lowers it after its quarantine, not before.
    ?assertMatch({ok, #{lease_ms := 60000}}, state_read(Path)),
    {ok, true} = canal_lock_quorum_state:store(Path, (state(2, 17))#{lease_ms := 10000}),
    Longer = config(Path, #{rules => #{voter_lease_ms => 20000, quarantine_ms => 30000}}),
    {ok, #{start := Start}} = canal_lock_quorum_state:start(Longer, 0),
    ?assertMatch(#{quarantine_ms := 30000}, Start),
    %% A longer lease is stored before it is promised.
    ?assertMatch({ok, #{lease_ms := 20000}}, state_read(Path)).

previous_members(Path) ->
    _ = start(Path),
    ?assertMatch(#{previous_members := [_]}, start(Path)),
    {ok, #{members := Members, list := List}} = state_read(Path),
    ?assertEqual([atom_to_binary(node(), utf8)], Members),
    ?assertEqual(32, byte_size(List)),
    Two = config(Path, #{members => [node(), 'b@host2']}),
    {ok, #{previous_members := Previous}} = canal_lock_quorum_state:start(Two, 0),
    ?assertEqual(Members, Previous),
    {ok, #{list := OtherList}} = state_read(Path),
    ?assertNotEqual(List, OtherList).

former_members(Path) ->
    Start = fun(Others) ->
        Config = config(Path, #{members => [node() | Others]}),
        {ok, #{start := #{conflicted := IsConflicted}, state := State}} = canal_lock_quorum_state:start(Config, 0),
        ?assertEqual({ok, State}, state_read(Path)),
        {IsConflicted, lists:sort(canal_lock_quorum_state:former(State) -- [node()])}
    end,
    ?assertEqual({false, []}, Start([a@b])),
    ?assertEqual({false, []}, Start([a@b])),
    ?assertEqual({true, [a@b]}, Start([a@b, b@b])),
    ?assertEqual({true, [a@b]}, Start([a@b, b@b])),
    ?assertEqual({true, [a@b, b@b]}, Start([c@b])),
    ?assertEqual({true, [a@b, b@b, c@b]}, Start([a@b])),
    {ok, State} = state_read(Path),
    {ok, true} = canal_lock_quorum_state:store(Path, canal_lock_quorum_state:agreed(State)),
    ?assertEqual({false, []}, Start([a@b])).

%% A mark far ahead of the clock.
-define(MARK, 1 bsl 60).

%% The options of a list with groups, and of one without.
grouped() -> #{members => members(6)}.
whole() -> #{members => members(5)}.

members(Count) ->
    [node() | lists:sublist([a@b, b@b, c@b, d@b, e@b, f@b], Count - 1)].

%% What a voter starts with and has stored, if it had these options and this mark, and has other options now.
changed(Path, Before, Now) ->
    _ = file:delete(Path),
    {ok, #{state := State}} = canal_lock_quorum_state:start(config(Path, Before), 0),
    {ok, true} = canal_lock_quorum_state:store(Path, canal_lock_quorum_state:with_mark(?MARK, State)),
    {ok, Started = #{state := Stored}} = canal_lock_quorum_state:start(config(Path, Now), 0),
    ?assertEqual({ok, Stored}, state_read(Path)),
    Started.

keeps_mark(#{start := #{floor := Floor, origin := Origin}, state := #{below := Below}}) ->
    ?assertEqual({?MARK, ?MARK}, {Floor, Below}),
    ?assert(Origin < ?MARK).

mark_of_a_whole_list(Path) ->
    keeps_mark(changed(Path, #{members => members(4)}, whole())).

regrouped(Path) ->
    lists:foreach(fun({Before, Now}) ->
        #{start := Start, state := Stored, found := own} = changed(Path, Before, Now),
        ?assertMatch(#{floor := nil, origin := ?MARK, conflicted := true}, Start),
        ?assertMatch(#{below := nil}, Stored),
        %% The mark is gone: a clock must be enough now.
        {ok, #{start := Again}} = canal_lock_quorum_state:start(config(Path, Now), 0),
        #{floor := nil, origin := Origin} = Again,
        ?assert(Origin < ?MARK)
    end, [
        {whole(), #{members => members(4)}},
        {whole(), #{members => [node(), f@b]}},
        {whole(), grouped()},
        {grouped(), whole()},
        {grouped(), #{members => members(7)}},
        {grouped(), (grouped())#{replicas => 3}},
        {grouped(), (grouped())#{rules => #{partitions => 64}}},
        {whole(), (whole())#{replicas => 3}},
        {(whole())#{replicas => 3}, whole()}
    ]),
    %% A mark below the clock does not lower the origin.
    {ok, #{state := State}} = canal_lock_quorum_state:start(config(Path, whole()), 0),
    {ok, true} = canal_lock_quorum_state:store(Path, canal_lock_quorum_state:with_mark(17, State)),
    {ok, #{start := #{origin := Clock}}} = canal_lock_quorum_state:start(config(Path, grouped()), 0),
    ?assert(Clock > 17),
    %% Format 1 is older than groups.
    ok = file:write_file(Path, "canal_lock_quorum fences below 1152921504606846976\n"),
    {ok, #{start := Start1}} = canal_lock_quorum_state:start(config(Path, grouped()), 0),
    ?assertMatch(#{floor := nil, origin := ?MARK}, Start1).

%% A version before groups has stored a list of more than five, of which all members vote.
same_groups(Path) ->
    Three = (grouped())#{replicas => 3},
    Batch = (grouped())#{rules => #{batch => 7, voter_lease_ms => 12_000, quarantine_ms => 12_000}},
    [
        keeps_mark(changed(Path, Before, Now))
     || {Before, Now} <- [
            {grouped(), grouped()}, {grouped(), (grouped())#{replicas => 5}}, {grouped(), Batch}, {Three, Three},
            {whole(), (whole())#{replicas => 5}}, {whole(), (whole())#{rules => #{partitions => 64}}}
        ]
    ],
    #{state := State = #{members := Names}} = changed(Path, grouped(), grouped()),
    {ok, true} = canal_lock_quorum_state:store(Path, State#{list := canal_lock_quorum_config:list_of_all(Names)}),
    {ok, Started} = canal_lock_quorum_state:start(config(Path, grouped()), 0),
    ?assertMatch(#{start := #{floor := nil, origin := ?MARK, conflicted := true}, list_changed := true}, Started).

former_voters(Path) ->
    #{previous_members := Names, list_changed := true, state := State} =
        changed(Path, grouped(), (grouped())#{replicas => 3}),
    ?assertEqual(lists:sort(members(6)), lists:sort(canal_lock_quorum_state:former(State))),
    ?assertEqual(lists:sort([atom_to_binary(Member, utf8) || Member <- members(6)]), lists:sort(Names)),
    ?assertMatch(#{list_changed := false, start := #{conflicted := false}}, changed(Path, grouped(), grouped())).

no_state_file(_Path) ->
    Config = config(none),
    Clock = erlang:system_time(second),
    {ok, #{start := Start, state := none}} = canal_lock_quorum_state:start(Config, 0),
    #{life := Life, floor := nil, durable := false, quarantine_ms := 10000} = Start,
    ?assert(Life >= Clock),
    {ok, #{start := #{life := Later}}} = canal_lock_quorum_state:start(Config, Life + 100),
    ?assertEqual(Life + 101, Later).
