%% Prints what is being measured and the estimated time left: in place on a terminal, otherwise as a line at most every
%% ten seconds. report/2 returns after the text is written, so that output does not overlap with the next measurement.
-module(bench_progress).

-export([start/2, begin_group/3, report/2, stop/1]).

-export_type([progress/0]).

-type progress() :: pid().

-record(state, {
    output :: terminal | lines,
    started = now_ms() :: integer(),
    %% Expected time of all groups, and of those before the current one.
    all_s :: number(),
    before_s = 0 :: number(),
    %% The current group.
    number = 0 :: non_neg_integer(),
    expected_s = 0 :: number(),
    group_started = now_ms() :: integer(),
    written = none :: integer() | none
}).

-define(EVERY_MS, #{terminal => 200, lines => 10000}).
%% Longer lines would wrap, and the next line could not overwrite them.
-define(WIDTH, 79).

%% Expected_s: seconds of all groups together.
-spec start(terminal | lines, {Groups :: pos_integer(), Expected_s :: number()}) -> progress().
start(Output, {Groups, Expected_s}) ->
    spawn_link(fun() -> loop(#state{output = Output, all_s = Expected_s}, Groups) end).

%% Starts the next benchmark group.
-spec begin_group(progress(), Name :: string(), Expected_s :: number()) -> ok.
begin_group(Progress, Name, Expected_s) ->
    call(Progress, {begin_group, Name, Expected_s}).

-spec report(progress(), iodata()) -> ok.
report(Progress, Text) ->
    call(Progress, {report, Text}).

%% Clears the progress line.
-spec stop(progress()) -> ok.
stop(Progress) ->
    call(Progress, stop).

call(Progress, Request) ->
    Monitor = monitor(process, Progress),
    Progress ! {Monitor, self(), Request},
    receive
        {Monitor, done} ->
            true = demonitor(Monitor, [flush]),
            ok;
        {'DOWN', Monitor, process, Progress, Reason} ->
            error({progress, Reason})
    end.

loop(State, Groups) ->
    receive
        {Monitor, From, Request} ->
            After = handle(Request, State, Groups),
            From ! {Monitor, done},
            After =:= stopped orelse loop(After, Groups)
    end.

handle({begin_group, Name, Expected_s}, State, Groups) ->
    #state{before_s = Before, expected_s = Last, number = Number} = State,
    New = State#state{
        before_s = Before + Last, number = Number + 1, expected_s = Expected_s, group_started = now_ms()
    },
    write(Name, New, Groups);
handle({report, Text}, #state{output = Output, written = Written} = State, Groups) ->
    case Written =:= none orelse now_ms() - Written >= maps:get(Output, ?EVERY_MS) of
        true -> write(Text, State, Groups);
        false -> State
    end;
handle(stop, #state{output = Output}, _Groups) ->
    Output =:= terminal andalso io:put_chars("\r\e[K"),
    stopped.

write(Text, #state{output = Output, number = Number, started = Started} = State, Groups) ->
    Elapsed_s = (now_ms() - Started) div 1000,
    Left = io_lib:format("~s elapsed, about ~s left", [clock(Elapsed_s), clock(left_s(State))]),
    Line = io_lib:format("[~b/~b, ~s] ~ts", [Number, Groups, Left, Text]),
    case Output of
        terminal -> io:put_chars(["\r", string:slice(Line, 0, ?WIDTH), "\e[K"]);
        lines -> io:put_chars([Line, $\n])
    end,
    State#state{written = now_ms()}.

%% The expected time of the remaining groups, scaled by actual / expected time of the completed ones.
left_s(#state{started = Started, group_started = GroupStarted} = State) ->
    #state{all_s = All, before_s = Before, expected_s = Expected} = State,
    Stretch = case Before of 0 -> 1; _ -> (GroupStarted - Started) / 1000 / Before end,
    round(max(0, Expected * Stretch - (now_ms() - GroupStarted) / 1000) + (All - Before - Expected) * Stretch).

clock(Seconds) ->
    io_lib:format("~b:~2..0b", [Seconds div 60, Seconds rem 60]).

now_ms() ->
    erlang:monotonic_time(millisecond).
