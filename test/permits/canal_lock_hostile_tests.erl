%% P9: what strangers can send does no harm: keys made to collide, and a table of atoms that is nearly full. (Terms that
%% are huge or deep are in canal_lock_keys_tests and canal_lock_long_keys_tests.)
-module(canal_lock_hostile_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 20_000).

%% So many keys are looked at in one call, or a third of it: a large key counts as several.
-define(PIECE, 128).

hostile_test_() ->
    [
        test_setup:tests([
            {lists:concat(["P9: ", What, " are spread over the table"]), fun() -> spread(Colliding) end}
         || {What, Colliding} <- colliding()
        ]),
        test_setup:tests(without_manager, [
            {"P9: no call makes an atom", fun() ->
                ?assertEqual(0, test_setup:in_a_vm(["+t", "30000"], fun atoms_made/0))
            end}
        ])
    ].

%% What differs in a part only that a hash might leave out: the VM's own, which has no seed, or one of the words alone.
%% By number.
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
        {"pids of many nodes with the same number", fun(N) ->
            External(<<88, There/binary, 100:32, 0:32, N:32>>)
        end},
        {"pids with the same number, round after round", fun(N) ->
            External(<<88, There/binary, 100:32, N:32, 1:32>>)
        end},
        {"ports of many nodes with the same number", fun(N) ->
            External(<<120, There/binary, 100:64, N:32>>)
        end},
        {"ports whose numbers differ above", fun(N) ->
            External(<<120, There/binary, (N bsl 40):64, 1:32>>)
        end},
        {"maps with the pairs the other way round", fun(N) ->
            #{1 => N, N + 2 => 1, {N, 1} => {1, N}}
        end},
        {"integers that differ by a prime", fun(N) ->
            (1 bsl 200) + N * 4_294_967_291 * 268_435_399
        end},
        {"lists of floats that differ in their last bits", fun(N) ->
            <<Float/float>> = <<16#3ff0:16, N:48>>,
            [Float, Float]
        end}
    ].

%% Calls walk past the keys of the same hash, and of hashes near to it. The table is sorted by hashes, of 64 bits, and
%% looked at in this order. That 40 successive keys or more of all keys cover less than a fifth of what they cover on
%% average has a probability of 1 in 10^12.
spread(Colliding) ->
    [{acquired, 1} = canal_lock:acquire(Colliding(N), 1, 1) || N <- lists:seq(1, ?KEYS)],
    Pieces = pieces(0, 0),
    %% Keys of one hash come together, so a piece that ends with one of them is longer.
    [Length] = lists:usort([Keys || {Keys, _} <- Pieces]),
    ?assertEqual((?KEYS - 1) div Length, length(Pieces)),
    ?assert(Length >= 40),
    Hashes = [0 | [Last || {_, Last} <- Pieces]],
    Covered = lists:zipwith(fun(To, From) -> To - From end, tl(Hashes), lists:droplast(Hashes)),
    Average = (1 bsl 64) * Length div ?KEYS,
    ?assertEqual([], [Part || Part <- Covered, Part < Average div 5]).

%% How many keys there are in each, and the last hash of them; without the last piece.
pieces(Serial, After) ->
    case canal_lock_nif:keys(Serial, After, ?PIECE) of
        {_, _, done} -> [];
        {Same, Keys, Last} -> [{length(Keys), Last} | pieces(Same, Last)]
    end.

%% How many come to be by all calls, right and wrong ones, while there is hardly room for any.
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
    ok = canal_lock_manager:sweep(),
    ok = canal_lock:stop(),
    badarg = raised(fun() -> canal_lock:acquire(New, 3, 1) end),
    erlang:system_info(atom_count) - Before - 1.

fill(Room) ->
    _ = [binary_to_atom(<<"filled ", (integer_to_binary(N))/binary>>) || N <- lists:seq(1, Room)],
    ok.

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
            %% As the shell would, to explain it.
            #{} = canal_lock_errors:format_error(Reason, Stack),
            [{canal_lock, _, [_ | _], [_ | _]} | _] = Stack,
            Reason
    end.
