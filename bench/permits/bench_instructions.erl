%% Makes the calls whose instructions scripts/instructions.sh counts under callgrind: pairs of each kind of key of the
%% case `pair', and refusals. Prints the version of the VM, then the name of each row.
%%
%% callgrind counts only inside the native functions of acquire and release. It dumps its counters when a native
%% function of inspect.rs is called; here only canal_lock:count/1 does so. Each row therefore yields two dumps: one of
%% the warm-up and one of the counted calls.
-module(bench_instructions).

-export([main/0]).

-define(MAX_PER, 10).
%% The first pair of a process takes a slot and always reads the key. The first use of a key allocates its node.
-define(WARM_UP_CALLS, 10).
%% Words (8 MB), more than all calls allocate: {acquired, 1} costs more instructions when the heap is full.
-define(HEAP_WORDS, 1048576).
%% The sweep would reclaim the key.
-define(NEVER_MS, 3600000).

-spec main() -> no_return().
main() ->
    [Calls] = init:get_plain_arguments(),
    io:format("~ts~n", [vm()]),
    [ok = count(Row, list_to_integer(Calls)) || Row <- rows()],
    halt().

%% A name, what is done before the calls, and a function that makes the call this number of times.
rows() ->
    Nothing = fun() -> ok end,
    [{Variant, Nothing, fun(Times) -> pairs(Key, Times) end} || {Variant, Key} <- bench_pairs:keys()] ++
        [{"atom, refused", fun() -> bench_subjects:hold(ours, [[db]], 1, 1) end, fun refused/1}].

%% Everything that determines the number of instructions of a VM function.
vm() ->
    {Compiler, Version} = erlang:system_info(c_compiler_used),
    Numbers = lists:join(".", [integer_to_list(Number) || Number <- tuple_to_list(Version)]),
    [Otp, Erts, Flavor] = [erlang:system_info(Item) || Item <- [otp_release, version, emu_flavor]],
    io_lib:format("OTP ~ts, erts ~ts, ~p, compiled by ~p ~ts", [Otp, Erts, Flavor, Compiler, Numbers]).

%% Each key is alone in a new table, so that the lookup costs the same for every hash seed.
count({Name, Prepare, Call}, Times) ->
    {ok, _} = canal_lock:start_link(?MAX_PER, #{sweep_interval_ms => ?NEVER_MS}),
    ok = bench_process:result([{min_heap_size, ?HEAP_WORDS}], fun() ->
        ok = Prepare(),
        ok = Call(?WARM_UP_CALLS),
        _ = canal_lock:count(db),
        ok = Call(Times),
        _ = canal_lock:count(db),
        ok
    end),
    io:format("~ts~n", [Name]),
    canal_lock:stop().

pairs(_Key, 0) ->
    ok;
pairs(Key, Left) ->
    {acquired, 1} = canal_lock:acquire(Key, ?MAX_PER, 1),
    ok = canal_lock:release(Key, ?MAX_PER, 1),
    pairs(Key, Left - 1).

refused(0) ->
    ok;
refused(Left) ->
    full = canal_lock:acquire(db, 1, 1),
    refused(Left - 1).
