%% The floor of the benchmark: two bare NIF calls that count (native/bench_floor_nif). The library is in the folder of
%% the beam file.
-module(bench_floor_nif).

-export([floor_acquire/3, floor_release/3]).
-on_load(load/0).

-spec floor_acquire(term(), non_neg_integer(), non_neg_integer()) -> {acquired, pos_integer()} | full.
floor_acquire(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

-spec floor_release(term(), non_neg_integer(), non_neg_integer()) -> ok.
floor_release(_Key, _MaxPer, _Buckets) ->
    erlang:nif_error(not_loaded).

load() ->
    erlang:load_nif(filename:join(filename:dirname(code:which(?MODULE)), ?MODULE_STRING), 0).
