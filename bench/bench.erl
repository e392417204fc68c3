%% The benchmark: measures every case of bench_cases in one run and says how the figures stand to each other.
%% All cases are set up first and stay; then each round takes one sample of each, in an order of its own, so that
%% whatever happens to the machine meanwhile happens to all of them alike.
-module(bench).

-export([main/0]).

%% full: figures to publish. quick: to see that nothing has broken.
-define(MODES, #{
    "full" => #{rounds => 41, sample_ms => 40, keys => 1000000, wait_rounds => 7},
    "quick" => #{rounds => 9, sample_ms => 10, keys => 200000, wait_rounds => 1}
}).
%% Loops that are timed to find how many make a sample.
-define(TRIAL_LOOPS, 200).

-spec main() -> no_return().
main() ->
    try
        [Folder, Name] = init:get_plain_arguments(),
        case ?MODES of
            #{Name := Mode} ->
                run(Folder, Name, Mode),
                halt(0);
            #{} ->
                io:format(standard_error, "no such mode: ~ts; there are ~p~n", [Name, maps:keys(?MODES)]),
                halt(2)
        end
    catch
        Class:Reason:Stack ->
            io:format(standard_error, "~ts", [erl_error:format_exception(Class, Reason, Stack)]),
            halt(1)
    end.

run(Folder, Name, Mode) ->
    Machine = machine(Name, Mode),
    io:put_chars(Machine),
    Results = lists:foldl(fun maps:merge/2, #{}, [timed(Mode), memory(Mode), waits(Mode)]),
    Text = bench_report:text(Results),
    io:put_chars(Text),
    Report = filename:join(Folder, "report-" ++ Name ++ ".txt"),
    Samples = filename:join(Folder, "samples-" ++ Name ++ ".csv"),
    ok = file:write_file(Report, unicode:characters_to_binary([Machine, Text])),
    ok = file:write_file(Samples, bench_report:csv(Results)),
    io:format("~nThis report is in ~ts, the samples are in ~ts~n", [Report, Samples]).

timed(#{rounds := Rounds, sample_ms := SampleMs}) ->
    Subjects = lists:usort(lists:append([Subjects || #{subjects := Subjects} <- bench_cases:cases()])),
    [ok = bench_subjects:start(Subject) || Subject <- Subjects],
    Runs = [
        prepare(Case, Subject, SampleMs)
     || #{keys := Keys, subjects := OfCase} = Case <- bench_cases:cases(),
        length(Keys) =< erlang:system_info(schedulers_online),
        Subject <- OfCase
    ],
    _ = rand:seed(exsss, 1),
    collect([
        {{Group, Variant, Subject, Op}, {Round, Ns}}
     || Round <- lists:seq(1, Rounds),
        {{Group, Variant, Subject}, Workers, Times} <- shuffle(Runs),
        {Op, Ns} <- bench_sample:take(Workers, Times)
    ]).

collect(Samples) ->
    Add = fun({Id, Value}, Acc) -> maps:update_with(Id, fun(Values) -> [Value | Values] end, [Value], Acc) end,
    lists:foldl(Add, #{}, Samples).

shuffle(List) ->
    [Item || {_, Item} <- lists:sort([{rand:uniform(), Item} || Item <- List])].

prepare(#{group := Group, variant := Variant, keys := Keys} = Case, Subject, SampleMs) ->
    ok = hold(Case, Subject),
    Workers = [worker(Case, Subject, bench_subjects:key(Subject, Key)) || Key <- Keys],
    {{Group, Variant, Subject}, Workers, loops(Workers, SampleMs)}.

worker(#{ops := Ops, max_per := MaxPer, buckets := Buckets}, Subject, Key) ->
    [{Op, bench_loops:loop(Subject, Op), Key, MaxPer, Buckets} || Op <- Ops].

%% As many as take the wanted time, by two trials: the first is for caches, and for what the subject does only once.
loops(Workers, SampleMs) ->
    _ = bench_sample:take(Workers, ?TRIAL_LOOPS),
    Ns = lists:sum([PerLoop || {_, PerLoop} <- bench_sample:take(Workers, ?TRIAL_LOOPS)]),
    max(?TRIAL_LOOPS, round(SampleMs * 1.0e6 / Ns)).

hold(#{held := Held, keys := Keys, max_per := MaxPer, buckets := Buckets}, Subject) ->
    Parent = self(),
    Hold = fun(Key) ->
        {acquired, _} = (bench_subjects:module(Subject)):acquire(Key, MaxPer, Buckets),
        Parent ! {self(), held},
        receive
            give_back -> ok
        end
    end,
    Holders = [spawn_link(fun() -> Hold(Key) end) || Key <- Keys, _ <- lists:seq(1, Held)],
    [receive {Holder, held} -> ok end || Holder <- Holders],
    ok.

memory(#{keys := Keys}) ->
    maps:from_list([
        {{memory, Variant, Subject, Op}, [{1, Bytes}]}
     || {Variant, _} <- bench_cases:shapes(),
        Subject <- [ours, ets],
        {Op, Bytes} <- bench_memory:measure(Variant, Subject, Keys)
    ]).

waits(#{keys := Keys, wait_rounds := Rounds}) ->
    collect([
        {{wait, Variant, ours, Op}, {Round, Us}}
     || Round <- lists:seq(1, Rounds),
        {Variant, Op, Us} <- bench_waits:measure(Keys)
    ]).

machine(Name, #{rounds := Rounds, sample_ms := SampleMs, keys := Keys}) ->
    Facts = [
        {"machine", processor()},
        {"system", erlang:system_info(system_architecture)},
        {"otp", [erlang:system_info(otp_release), ", ", atom_to_list(erlang:system_info(emu_flavor))]},
        {"schedulers", integer_to_list(erlang:system_info(schedulers_online))},
        {"commit", commit()},
        {"run", io_lib:format("~ts: ~b rounds, samples of ~b ms, memory of ~b keys", [Name, Rounds, SampleMs, Keys])},
        {"columns", "median   p25..p75"}
    ],
    [io_lib:format("~-12ts~ts~n", [Fact, Value]) || {Fact, Value} <- Facts].

processor() ->
    case file:read_file("/proc/cpuinfo") of
        {ok, Info} ->
            case re:run(Info, "^model name\\s*: (.*)$", [multiline, {capture, all_but_first, list}]) of
                {match, [Model]} -> Model;
                nomatch -> "unknown"
            end;
        {error, _} ->
            "unknown"
    end.

commit() ->
    case string:trim(os:cmd("git describe --always --dirty --exclude '*' 2>/dev/null")) of
        "" -> "none";
        Commit -> Commit
    end.
