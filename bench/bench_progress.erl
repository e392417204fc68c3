%% Says what is being measured and how long it will take yet: in place on a terminal, by a line now and then
%% elsewhere. Whoever tells waits until it is written, so that no writing falls into what is timed next.
-module(bench_progress).

-export([start/2, room/3, tell/2, stop/1]).

-export_type([progress/0]).

-type progress() :: pid().

-record(state, {
    output :: terminal | lines,
    started = now_ms() :: integer(),
    %% What all rooms are expected to take, and those before the present one.
    all_s :: number(),
    before_s = 0 :: number(),
    %% The present room.
    number = 0 :: non_neg_integer(),
    expected_s = 0 :: number(),
    room_started = now_ms() :: integer(),
    written = none :: integer() | none
}).

-define(EVERY_MS, #{terminal => 200, lines => 10000}).
%% Longer lines would wrap, and could not be taken back.
-define(WIDTH, 79).

%% Expected_s: seconds that all rooms take together.
-spec start(terminal | lines, {Rooms :: pos_integer(), Expected_s :: number()}) -> progress().
start(Output, {Rooms, Expected_s}) ->
    spawn_link(fun() -> loop(#state{output = Output, all_s = Expected_s}, Rooms) end).

%% The next room begins.
-spec room(progress(), Name :: string(), Expected_s :: number()) -> ok.
room(Progress, Name, Expected_s) ->
    call(Progress, {room, Name, Expected_s}).

-spec tell(progress(), iodata()) -> ok.
tell(Progress, Text) ->
    call(Progress, {tell, Text}).

%% Leaves the line to others.
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

loop(State, Rooms) ->
    receive
        {Monitor, From, Request} ->
            After = handle(Request, State, Rooms),
            From ! {Monitor, done},
            After =:= stopped orelse loop(After, Rooms)
    end.

handle({room, Name, Expected_s}, #state{before_s = Before, expected_s = Last, number = Number} = State, Rooms) ->
    New = State#state{
        before_s = Before + Last, number = Number + 1, expected_s = Expected_s, room_started = now_ms()
    },
    write(Name, New, Rooms);
handle({tell, Text}, #state{output = Output, written = Written} = State, Rooms) ->
    case Written =:= none orelse now_ms() - Written >= maps:get(Output, ?EVERY_MS) of
        true -> write(Text, State, Rooms);
        false -> State
    end;
handle(stop, #state{output = Output}, _Rooms) ->
    Output =:= terminal andalso io:put_chars("\r\e[K"),
    stopped.

write(Text, #state{output = Output, number = Number, started = Started} = State, Rooms) ->
    Elapsed_s = (now_ms() - Started) div 1000,
    Left = io_lib:format("~s gone, about ~s left", [clock(Elapsed_s), clock(left_s(State))]),
    Line = io_lib:format("[~b/~b, ~s] ~ts", [Number, Rooms, Left, Text]),
    case Output of
        terminal -> io:put_chars(["\r", string:slice(Line, 0, ?WIDTH), "\e[K"]);
        lines -> io:put_chars([Line, $\n])
    end,
    State#state{written = now_ms()}.

%% What the rest was expected to take, stretched by how much longer than expected the rooms before have taken.
left_s(#state{all_s = All, before_s = Before, expected_s = Expected, started = Started, room_started = Here}) ->
    Stretch = case Before of 0 -> 1; _ -> (Here - Started) / 1000 / Before end,
    round(max(0, Expected * Stretch - (now_ms() - Here) / 1000) + (All - Before - Expected) * Stretch).

clock(Seconds) ->
    io_lib:format("~b:~2..0b", [Seconds div 60, Seconds rem 60]).

now_ms() ->
    erlang:monotonic_time(millisecond).
