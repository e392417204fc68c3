%% P9: what strangers can send does no harm: keys made to collide, and a table of atoms that is nearly full. (Terms that
%% are huge or deep are in canal_lock_keys_tests and canal_lock_long_keys_tests.)
-module(canal_lock_hostile_tests).

-include_lib("eunit/include/eunit.hrl").

-define(KEYS, 20_000).

%% With a hash that they all share, each call would walk past ten thousand of them: fifty times as dear.
-define(MAX_RATIO, 10).

hostile_test_() ->
    [
        canal_lock_stage:tests([
            {lists:concat(["P9: ", What, " cost what others cost"]), fun() -> costs_what_others_cost(Colliding) end}
         || {What, Colliding} <- colliding()
        ]),
        canal_lock_stage:tests(without_manager, [
            {"P9: no call makes an atom", fun() ->
                ?assertEqual(0, canal_lock_stage:in_a_vm(["+t", "30000"], fun atoms_made/0))
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

costs_what_others_cost(Colliding) ->
    %% Of the same form, more or less: copied, and found by a digest.
    Others = time_us([#{N => other} || N <- lists:seq(1, ?KEYS)]),
    Time = time_us([Colliding(N) || N <- lists:seq(1, ?KEYS)]),
    ?assertMatch({_, _, true}, {Others, Time, Time < ?MAX_RATIO * Others}).

%% Until each is a key of its own.
time_us(Keys) ->
    {Time_us, Answers} = timer:tc(fun() -> [canal_lock:acquire(Key, 1, 1) || Key <- Keys] end),
    ?assertEqual([{acquired, 1}], lists:usort(Answers)),
    [ok = canal_lock:release(Key) || Key <- Keys],
    Time_us.

%% How many come to be by all calls, right and wrong ones, while there is hardly room for any.
atoms_made() ->
    ok = application:load(canal_lock),
    {ok, Modules} = application:get_key(canal_lock, modules),
    ok = code:ensure_modules_loaded([lists, maps, gen_server, sys, timer, proplists, ?MODULE | Modules]),
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
