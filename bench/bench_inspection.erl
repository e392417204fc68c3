%% Measures the cost of inspecting a table in use, by monitoring or by hand.
%%
%% "piece of keys/0": duration of each native call that keys/0 makes; the VM can preempt the caller between two of them.
%% "info/0": median of several calls, with a growing number of keys held by 100 processes, and with many holders of one
%% permit each.
%%
%% Options of the mode: inspection_rounds; inspection_keys, ascending multiples of 100; inspection_holders.
-module(bench_inspection).

-export([measure/2]).
%% Called in the other VM.
-export([keys/1, holders/1]).

%% As keys/0.
-define(PIECE_KEYS, 512).
-define(HOLDERS, 100).
-define(CALLS, 501).
-define(MAX_PER, 1000000).

-spec measure(map(), fun((iodata()) -> ok)) -> #{bench_results:id() => [{pos_integer(), float()}]}.
measure(#{inspection_rounds := Rounds, inspection_keys := Sizes, inspection_holders := Holders}, Report) ->
    bench_rounds:play(Rounds, fun(Round) ->
        ok = Report(io_lib:format("inspection of many keys and holders, round ~b of ~b", [Round, Rounds])),
        {Infos, Pieces} = bench_vm:call(ours, ?MODULE, keys, [Sizes]),
        Info = bench_vm:call(ours, ?MODULE, holders, [Holders]),
        lists:append([
            [{{info, "info/0", Keys, ours, call}, Us} || {Keys, Us} <- Infos],
            [{{info, "info/0, " ++ bench_die_off:many(Holders), none, ours, call}, Info}],
            [{{sweep, "piece of keys/0", none, ours, Measure}, Us} || {Measure, Us} <- bench_times:worst_us(Pieces)]
        ])
    end).

-spec keys(Sizes :: [pos_integer(), ...]) -> {[{Keys :: pos_integer(), Us :: float()}], PiecesNs :: [integer()]}.
keys(Sizes) ->
    ok = bench_subjects:start(ours),
    Holders = [spawn_monitor(fun() -> hold_more(Holder, 0) end) || Holder <- lists:seq(1, ?HOLDERS)],
    Infos = [
        begin
            ok = all_hold(Holders, Keys div ?HOLDERS),
            {Keys, info_us(#{keys => Keys, permits => Keys, holders => ?HOLDERS})}
        end
     || Keys <- Sizes
    ],
    {Seen, Times} = bench_times:in_a_process(fun() -> pieces(0, 0, 0, []) end),
    Seen = lists:last(Sizes),
    ok = kill(Holders),
    {Infos, [bench_times:of_native(Time) || Time <- Times]}.

%% The result of a piece becomes garbage, and is collected before the next piece is timed.
pieces(Serial, From, Seen, Times) ->
    erlang:garbage_collect(),
    Start = erlang:monotonic_time(),
    {Same, Keys, Next} = canal_lock_nif:keys(Serial, From, ?PIECE_KEYS),
    Time = erlang:monotonic_time() - Start,
    case Next of
        done -> {Seen + length(Keys), [Time | Times]};
        _ -> pieces(Same, Next, Seen + length(Keys), [Time | Times])
    end.

-spec holders(Holders :: pos_integer()) -> Us :: float().
holders(Number) ->
    ok = bench_subjects:start(ours),
    Holders = [spawn_monitor(fun() -> hold_more(same, 0) end) || _ <- lists:seq(1, Number)],
    ok = all_hold(Holders, 1),
    Us = info_us(#{keys => 1, permits => Number, holders => Number}),
    ok = kill(Holders),
    Us.

%% Acquires keys until it holds the requested number.
hold_more(Name, Held) ->
    receive
        {Pid, hold, Keys} ->
            [{acquired, _} = canal_lock:acquire({Name, I}, ?MAX_PER, 1) || I <- lists:seq(Held + 1, Keys)],
            Pid ! {self(), holding},
            hold_more(Name, Keys)
    end.

all_hold(Holders, Keys) ->
    [Holder ! {self(), hold, Keys} || {Holder, _} <- Holders],
    [
        receive
            {Pid, holding} -> ok;
            {'DOWN', Monitor, process, Pid, Reason} -> error({holder, Reason})
        end
     || {Pid, Monitor} <- Holders
    ],
    ok.

kill(Holders) ->
    ok = bench_process:kill(Holders),
    bench_records:closed(ours).

%% Each call must return the expected counts.
info_us(Expected) ->
    Ns = bench_times:of_calls(?CALLS, fun() ->
        Start = erlang:monotonic_time(),
        Info = canal_lock:info(),
        Time = erlang:monotonic_time() - Start,
        Expected = maps:with(maps:keys(Expected), Info),
        Time
    end),
    [{50, Median}] = bench_times:percentiles([50], Ns),
    Median / 1000.
