%% P9: keys from untrusted input do no harm: keys that are made to collide, and keys in a VM whose atom table is nearly
%% full. (canal_lock_keys_tests and canal_lock_long_keys_tests have the huge and the deep terms.)
-module(canal_lock_hostile_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 20_000).

%% The limit of one piece of `keys/3'. A large key counts as several, so a piece has a third of this or more.
-define(PIECE, 128).

hostile_test_() ->
    [
        test_setup:tests([
            {lists:concat(["P9: ", Kind, " are spread over the table"]), fun() -> spread(Key) end}
         || {Kind, Key} <- colliding()
        ]),
        test_setup:tests(without_manager, [
            {"P9: no call creates an atom", fun() ->
                ?assertEqual(0, test_setup:in_a_vm(["+t", "30000"], fun atoms_made/0))
            end}
        ])
    ].

%% Kinds of keys that differ only in a part that a hash may ignore. The VM's own hash, which has no seed, ignores some
%% parts; a hash of single words ignores others. Each function returns the Nth key.
colliding() ->
    Atom = fun(Node) -> binary:part(term_to_binary(Node), 1, byte_size(term_to_binary(Node)) - 1) end,
    There = Atom(there@nowhere),
    External = fun(Encoded) -> binary_to_term(<<131, Encoded/binary>>) end,
    [
        {"references of many nodes with the same words", fun(N) ->
            External(<<90, 3:16, There/binary, N:32, 1:32, 2:32, 3:32>>)
        end},
        {"references with one word that differs", fun(N) ->
            External(<<90, 5:16, There/binary, 1:32, 1:32, 2:32, 3:32, 4:32, N:32>>)
        end},
        {"pids of many nodes with the same number", fun(N) -> External(<<88, There/binary, 100:32, 0:32, N:32>>) end},
        {"pids with the same number and other serials", fun(N) ->
            External(<<88, There/binary, 100:32, N:32, 1:32>>)
        end},
        {"ports of many nodes with the same number", fun(N) -> External(<<120, There/binary, 100:64, N:32>>) end},
        {"ports whose numbers differ in the high bits", fun(N) ->
            External(<<120, There/binary, (N bsl 40):64, 1:32>>)
        end},
        {"maps with keys and values exchanged", fun(N) -> #{1 => N, N + 2 => 1, {N, 1} => {1, N}} end},
        {"integers that differ by a prime", fun(N) -> (1 bsl 200) + N * 4_294_967_291 * 268_435_399 end},
        {"lists of floats that differ in their last bits", fun(N) ->
            <<Float/float>> = <<16#3ff0:16, N:48>>,
            [Float, Float]
        end}
    ].

%% Calls walk past keys with the same hash and with hashes close to it. The table is sorted by 64-bit hashes, and
%% `keys/3' returns the keys in this order. With uniform hashes, 40 or more successive keys cover less than a fifth of
%% their average range with a probability of 1 in 10^12.
spread(Key) ->
    [{acquired, 1} = canal_lock:acquire(Key(N), 1, 1) || N <- lists:seq(1, ?KEYS)],
    Pieces = pieces(0, 0),
    %% Keys with one hash are not split, so a piece that ends with such keys is longer.
    [Length] = lists:usort([Keys || {Keys, _} <- Pieces]),
    ?assertEqual((?KEYS - 1) div Length, length(Pieces)),
    ?assert(Length >= 40),
    Hashes = [0 | [Last || {_, Last} <- Pieces]],
    Covered = lists:zipwith(fun(To, From) -> To - From end, tl(Hashes), lists:droplast(Hashes)),
    Average = (1 bsl 64) * Length div ?KEYS,
    ?assertEqual([], [Part || Part <- Covered, Part < Average div 5]).

%% The number of keys in each piece, and their last hash. Without the last piece.
pieces(Serial, After) ->
    case canal_lock_nif:keys(Serial, After, ?PIECE) of
        {_, _, done} -> [];
        {Same, Keys, Last} -> [{length(Keys), Last} | pieces(Same, Last)]
    end.

%% How many atoms all calls create, correct and wrong ones, while 100 more fit into the atom table.
atoms_made() ->
    ok = application:load(canal_lock),
    {ok, Modules} = application:get_key(canal_lock, modules),
    Formatting = [io_lib, io_lib_format, io_lib_pretty, string, unicode, unicode_util],
    ok = code:ensure_modules_loaded([lists, maps, gen_server, sys, timer, proplists, ?MODULE | Formatting ++ Modules]),
    {ok, _} = canal_lock:start_link(3),
    fill(erlang:system_info(atom_limit) - erlang:system_info(atom_count) - 100),
    Before = erlang:system_info(atom_count),
    New = binary_to_atom(<<"one of the last">>),
    [call(Key) || Key <- [New, {New, 1}, [New], #{New => New}, binary:copy(<<"x">>, 100_000), fun() -> New end]],
    shared(New),
    ok = canal_lock_manager:sweep(),
    ok = canal_lock:stop(),
    badarg = raised(fun() -> canal_lock:acquire(New, 3, 1) end),
    erlang:system_info(atom_count) - Before - 1.

fill(Free) ->
    _ = [binary_to_atom(<<"filled ", (integer_to_binary(N))/binary>>) || N <- lists:seq(1, Free)],
    ok.

%% The native functions of shared keys.
shared(Key) ->
    {Serial, [], _} = canal_lock_nif:shared_keys(0, 0, 1),
    changed = canal_lock_nif:set_share(Serial + 1, Key, 1, 1, 1),
    changed = canal_lock_nif:take_share(Serial + 1, Key),
    changed = canal_lock_nif:lose(Serial + 1, Key, self()),
    done = canal_lock_nif:set_share(Serial, Key, 1, 1, 1),
    [{acquired, 1}, full, declare] = [canal_lock_nif:acquire_shared(Key, Max, 1, 1) || Max <- [1, 1, 2]],
    declare = canal_lock_nif:wait(shared, Key, 2, 1, 1, 1, make_ref()),
    {1, 1, 1, 0, 0, 0, {true, true}} = canal_lock_nif:take_share(Serial, Key),
    none = canal_lock_nif:take_share(Serial, {Key, other}),
    0 = canal_lock_nif:lose(Serial, Key, self()),
    done = canal_lock_nif:set_share(Serial, Key, 0, 0, none),
    [1, 0] = [canal_lock_nif:lose(Serial, Key, self()) || _ <- [1, 2]],
    {0, none, 0, 0, 0, 0, {false, false}} = canal_lock_nif:take_share(Serial, Key),
    ok = canal_lock_nif:release_shared(Key),
    {error, not_held} = canal_lock_nif:release_many(shared, Key, 1).

call(Key) ->
    {acquired, 1} = canal_lock:acquire(Key, 1, 1),
    full = canal_lock:acquire(Key, 1, 1),
    {ok, [1, 1]} = canal_lock:with_permit(Key, 2, 1, fun() -> canal_lock:buckets(Key, 1) end),
    [_] = canal_lock:holders(Key),
    [_] = canal_lock:held(),
    [_] = canal_lock:keys(),
    [] = canal_lock:audit(),
    #{permits := 1} = canal_lock:info(),
    ok = canal_lock:release(Key),
    {error, not_held} = canal_lock:release(Key),
    badarg = raised(fun() -> canal_lock:acquire(Key, -1, 1) end),
    badarg = raised(fun() -> canal_lock:held(Key) end).

raised(Call) ->
    try
        {answered, Call()}
    catch
        error:Reason:Stack ->
            %% The shell formats the error in the same way.
            #{} = canal_lock_errors:format_error(Reason, Stack),
            [{canal_lock, _, [_ | _], [_ | _]} | _] = Stack,
            Reason
    end.
