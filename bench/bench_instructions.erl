%% What scripts/instructions.sh counts of the native library: pairs of each key of the case `pair', in a VM that runs
%% under callgrind. Writes the version of the VM to the standard output, then the name of each key.
%%
%% callgrind counts inside the native functions of acquire and release alone, and dumps its counters when a native
%% function of inspect.rs is called: here that is canal_lock:count/1 alone. So each key yields two dumps, of the pairs
%% of the warm-up and of the pairs that count.
-module(bench_instructions).

-export([main/0]).

-define(MAX_PER, 10).
%% The first pair of a process takes a slot and reads the key for sure; a key that is new has a node made for it.
-define(WARM_UP_PAIRS, 10).
%% Words (8 MB), more than all pairs leave on the heap: {acquired, 1} costs more instructions where a heap is full.
-define(HEAP_WORDS, 1048576).
%% The sweep would take the key away.
-define(NEVER_MS, 3600000).

-spec main() -> no_return().
main() ->
    [Pairs] = init:get_plain_arguments(),
    io:format("~ts~n", [vm()]),
    [ok = count(Key, Variant, list_to_integer(Pairs)) || {Variant, Key} <- bench_cases:keys()],
    halt().

%% All that decides how many instructions a function of the VM takes.
vm() ->
    {Compiler, Version} = erlang:system_info(c_compiler_used),
    Numbers = lists:join(".", [integer_to_list(Number) || Number <- tuple_to_list(Version)]),
    [Otp, Erts, Flavor] = [erlang:system_info(Item) || Item <- [otp_release, version, emu_flavor]],
    io_lib:format("OTP ~ts, erts ~ts, ~p, compiled by ~p ~ts", [Otp, Erts, Flavor, Compiler, Numbers]).

%% Each key is alone in a table of its own, so that it is found at once whatever the seeds of the hash.
count(Key, Variant, Pairs) ->
    {ok, _} = canal_lock:start_link(?MAX_PER, #{sweep_interval_ms => ?NEVER_MS}),
    ok = bench_process:result([{min_heap_size, ?HEAP_WORDS}], fun() ->
        ok = pairs(Key, ?WARM_UP_PAIRS),
        0 = canal_lock:count(Key),
        ok = pairs(Key, Pairs),
        0 = canal_lock:count(Key),
        ok
    end),
    io:format("~ts~n", [Variant]),
    canal_lock:stop().

pairs(_Key, 0) ->
    ok;
pairs(Key, Left) ->
    {acquired, 1} = canal_lock:acquire(Key, ?MAX_PER, 1),
    ok = canal_lock:release(Key, ?MAX_PER, 1),
    pairs(Key, Left - 1).
